"""``rocket metrics rules`` and ``dashboards``: files for Prometheus and Grafana that come with the package."""

from __future__ import annotations

from importlib.resources import files

import click

from rocketcore.cli.shell.command import command

__all__ = ["dashboards", "rules"]


def _text(name: str) -> str:
    return (files("rocketcore") / "monitoring" / name).read_text("utf-8")


@command(help="Print alert rules for Prometheus: rocket metrics rules > rocketmq-alerts.yml")
def rules() -> None:
    click.echo(_text("alerts.yml"), nl=False)


@command(help="Print a dashboard for Grafana: rocket metrics dashboards > rocketmq.json, then import it.")
def dashboards() -> None:
    click.echo(_text("dashboard.json"), nl=False)

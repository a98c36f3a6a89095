"""Clients, brokers and their rates."""

from __future__ import annotations

from rocketcore.admin.shapes import broker_figures, broker_row, member_row, producer_row, running_document
from rocketcore.console.console import Page, Visit, page_of
from rocketcore.console.defaults import changed_settings, is_told
from rocketcore.console.rates import RINGS, SERIES, sum_times
from rocketcore.console.safety import BadRequest
from rocketcore.console.spans import heat_map
from rocketcore.errors import RocketError, RouteNotFound

__all__ = ["broker", "brokers", "client", "clients", "rates"]


async def clients(visit: Visit) -> Page:
    """List producers, and with ``group`` the consumers of that group: brokers tell them only by group."""
    group = visit.given("group").strip()
    producers = await visit.admin.producers()
    members = await visit.admin.group_members(group) if group else []
    rows = [producer_row(each) for each in producers]
    rows += [{"kind": "consumer", "group": group, **member_row(each), "seen_at": None} for each in members]
    shown, state = page_of(
        rows, visit, ("group", "client_id", "language", "version", "seen_at"),
        lambda row, wanted: any(wanted in str(row[key]).lower() for key in ("group", "client_id", "address")),
    )  # fmt: skip
    return Page("clients.html", "Clients", {"rows": shown, "state": state, "group": group}, rows)


async def client(visit: Visit) -> Page:
    """Show what one consumer says of itself, with ``stack`` also what its threads are doing."""
    group, client_id = visit.needed("group"), visit.needed("id")
    stack = visit.number("stack", 0, 0, 1) == 1
    info = await visit.admin.consumer_running_info(group, client_id, stack=stack)
    document = running_document(group, client_id, info)
    return Page(
        "client.html", client_id, {"group": group, "id": client_id, "client": document, "asked": stack}, document
    )


async def brokers(visit: Visit) -> Page:
    members = await visit.admin.broker_status()
    rows = [{**broker_row(each), **broker_figures(each.runtime or {})} for each in members]
    return Page("brokers.html", "Brokers", {"rows": rows}, rows)


async def broker(visit: Visit) -> Page:
    name, broker_id = visit.needed("name"), visit.number("id", 0)
    members = [each for each in await visit.admin.broker_status(broker=name) if each.broker_id == broker_id]
    if not members:
        raise RouteNotFound(f"broker {name!r} has no member {broker_id}")
    member = members[0]
    runtime = dict(sorted((member.runtime or {}).items()))
    config: dict[str, str] | None = None
    if member.alive:
        try:
            config = dict(sorted((await visit.admin.broker_config(member.address)).items()))
        except RocketError:
            config = None
    row = {**broker_row(member), **broker_figures(runtime)}
    tab = visit.given("tab", "state")
    if tab not in ("state", "config"):
        raise BadRequest("tab is state or config")
    shown = visit.given("settings", "all")
    if shown not in ("all", "changed"):
        raise BadRequest("settings is all or changed")
    changed = changed_settings(config or {}, runtime)
    api = {**row, "runtime": runtime, "config": config, "changed": changed}
    data = {
        "row": row, "runtime": runtime, "config": config, "name": name, "id": broker_id, "tab": tab,
        "changed": changed, "settings": shown, "told": is_told(runtime),
    }  # fmt: skip
    return Page("broker.html", name, data, api)


async def rates(visit: Visit) -> Page:
    step = visit.number("step", 1)
    if step not in dict(RINGS):
        raise BadRequest(f"step is one of {', '.join(str(each) for each, _ in RINGS)}")
    table = visit.cluster.rates.table(step)
    runtimes = await visit.admin.broker_runtimes()
    buckets = sum_times(runtimes)
    heat = visit.cluster.rates.heat()
    newest = {name: next((each for each in reversed(table[name]) if each is not None), None) for name in SERIES}
    data = {
        "step": step,
        "rings": RINGS,
        "newest": newest,
        "buckets": buckets,
        "most": max(buckets.values(), default=0),
        "heat": heat_map(heat),
    }
    return Page(
        "rates.html",
        "Rates",
        data,
        {**table, "put_times": buckets, "heat": [{"time": at, **counts} for at, counts in heat]},
    )

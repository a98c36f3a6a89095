"""What ``rocket doctor`` says of consumer groups: those whose members do not agree, that stand still, or that fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocketcore.admin.group_troubles import GroupCondition, told_by_brokers, troubles
from rocketcore.cli.cluster.finding import Finding
from rocketcore.errors import RocketError
from rocketcore.naming import is_system_group

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin
    from rocketcore.admin.cluster import BrokerStatus

__all__ = ["look_at_groups"]

MOST_LOOKED: Final = 20
"""Groups of which members, and dead letters, are asked for one by one: those that are furthest behind come first."""


def look_at_groups(admin: Admin, brokers: list[BrokerStatus]) -> Iterator[Finding]:
    """Yield what is wrong with groups, or that nothing is."""
    runtimes = [each.runtime for each in brokers if each.runtime is not None]
    unlike, shared = (told_by_brokers(runtimes, name) for name in ("unlikeGroups", "sharedClientIds"))
    try:
        survey = admin.survey_groups()
        buried = _dead_letters(admin)
    except RocketError as error:
        yield Finding("groups", "cluster", "unknown", str(error))
        return
    totals = {group: whole for group in survey.traffic if (whole := survey.total(group)) is not None}
    behind = sorted((group for group, whole in totals.items() if whole.lag), key=lambda each: -totals[each].lag)
    looked = [group for group in behind if not is_system_group(group)]
    count = 0
    for group in sorted({*looked[:MOST_LOOKED], *unlike, *shared, *buried}):
        whole = totals.get(group)
        state = GroupCondition(
            group=group,
            members=_members(admin, group) if group in looked[:MOST_LOOKED] else None,
            lag=None if whole is None else whole.lag,
            rate=None if whole is None else whole.rate,
            dead_letters=buried.get(group),
            unlike=unlike.get(group, ""),
            shared=shared.get(group, ""),
        )
        for each in troubles(state):
            count += 1
            yield Finding(each.check, group, each.state, each.detail, each.hint)
    if len(looked) > MOST_LOOKED:
        yield Finding(
            "groups", "cluster", "unknown", f"{len(looked)} groups are behind, {MOST_LOOKED} of them were looked at",
            "check one with rocket group describe GROUP",
        )  # fmt: skip
    elif not count:
        yield Finding("groups", "cluster", "ok", f"{len(survey.configs)} groups, nothing stands out")


def _members(admin: Admin, group: str) -> int | None:
    try:
        return len(admin.group_members(group))
    except RocketError:
        return None


def _dead_letters(admin: Admin) -> dict[str, int]:
    """Return by group how many dead letters were not redriven; of the first groups that have a topic of them."""
    groups = [group for group in admin.dead_letter_groups() if group][:MOST_LOOKED]  # %DLQ% alone is of no group
    return {group: count for group in groups if (count := admin.dead_letter_count(group))}

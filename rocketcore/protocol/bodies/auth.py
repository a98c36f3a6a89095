"""Users and access rules of 5.3."""

from __future__ import annotations

from dataclasses import field

from rocketcore.protocol.bodies.base import Body, body


@body
class UserInfo(Body):
    """A user: type ``Super`` or ``Normal``, status ``enable`` or ``disable``."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


@body
class PolicyEntryInfo(Body):
    """What may be done with one resource, and from where: decision ``Allow`` or ``Deny``."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


@body
class PolicyInfo(Body):
    """Entries of one policy type, ``CUSTOM`` or ``DEFAULT``."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] = field(default_factory=list)


@body
class AclInfo(Body):
    """The policies of one subject, for example ``User:u``."""

    subject: str | None = None
    policies: list[PolicyInfo] = field(default_factory=list)

"""AccessControl: who may do what at brokers with access control: users and policies of 5.3 and later, accounts of 4.x.

Every broker has its own: a change goes to all members of all brokers, a list lays together what each says. Passwords,
which brokers send in clear, are not kept. Our servers have no accounts and refuse (RequestNotSupported).
RocketMQ 5.5.0: ``CreateUserSubCommand``, ``CreateAclSubCommand``; 4.9.7: ``UpdateAccessConfigSubCommand``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from rocketcore.admin.requests import Request, done
from rocketcore.admin.servers import Part, no_broker
from rocketcore.codes import RequestCode
from rocketcore.errors import ConfigError
from rocketcore.protocol import fastjson
from rocketcore.protocol.headers.auth import (
    CreateAccessConfigRequestHeader,
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAccessConfigRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
    UpdateUserRequestHeader,
)

if TYPE_CHECKING:
    from rocketcore.protocol.bodies.auth import AclInfo, UserInfo
    from rocketcore.protocol.command import RemotingCommand
    from rocketcore.protocol.schema import Header
    from rocketcore.service import Deadline

__all__ = ["ACTIONS", "AccessControl", "Account", "Accounts", "Policy", "User"]

ACTIONS: Final = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")


@dataclass(frozen=True, slots=True)
class User:
    """A user of 5.x, without the password: type ``Super`` or ``Normal``, status ``enable`` or ``disable``.

    brokers  addresses of those that have the user so
    """

    username: str
    user_type: str
    status: str
    brokers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """What a subject may do with one resource.

    subject     ``User:NAME``
    resource    ``Topic:T``, ``Group:G*``, ``Cluster:*``, ``*``
    actions     of ``ACTIONS``
    decision    ``Allow`` or ``Deny``
    source_ips  empty: from everywhere
    kind        ``Custom``, or ``Default`` for what counts where no custom one matches
    """

    subject: str
    resource: str
    actions: tuple[str, ...]
    decision: str = "Allow"
    source_ips: tuple[str, ...] = ()
    kind: str = "Custom"
    brokers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Account:
    """An account of 4.x, without its secret; permissions are texts such as ``orders=PUB|SUB``."""

    access_key: str
    admin: bool
    white_remote_address: str | None
    default_topic_perm: str | None
    default_group_perm: str | None
    topic_perms: tuple[str, ...]
    group_perms: tuple[str, ...]
    brokers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accounts:
    """The accounts of 4.x, and the addresses that need none, by the broker's address."""

    accounts: tuple[Account, ...]
    white_addresses: Mapping[str, tuple[str, ...]]


T = TypeVar("T")
E = TypeVar("E", User, Policy, Account)


class AccessControl(Part):
    """The part of ``AsyncAdmin`` about accounts.

    Its methods raise RequestNotSupported by a broker without them, NoPermission or BrokerError for who may not,
    PartlyDone where a change was made at some brokers only; ``cluster`` and ``broker`` say at which.
    """

    async def users(self, containing: str = "", *, cluster: str | None = None, broker: str | None = None) -> list[User]:
        """Return the users whose name contains a text; a user who differs between brokers appears more than once."""
        from rocketcore.protocol.bodies.auth import UserInfo

        request = Request(
            RequestCode.AUTH_LIST_USER,
            "list of users",
            lambda answer: [_user_in(UserInfo.from_json(each)) for each in _array(answer)],
            ListUsersRequestHeader(filter=containing or None),
        )
        found = _laid_together(await self._asked_all(request, cluster, broker))
        return sorted(found, key=lambda each: each.username)

    async def create_user(
        self,
        username: str,
        password: str,
        *,
        user_type: Literal["Normal", "Super"] = "Normal",
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Create a user; return the brokers' addresses."""
        from rocketcore.protocol.bodies.auth import UserInfo

        if not password.strip():
            raise ConfigError("a password is not blank")
        body = UserInfo(username, password, user_type, "enable").encode()
        header = CreateUserRequestHeader(username=_name(username))
        return await self._change(
            RequestCode.AUTH_CREATE_USER, f"creation of user {username!r}", header, cluster, broker, body
        )

    async def update_user(
        self,
        username: str,
        *,
        password: str | None = None,
        user_type: Literal["Normal", "Super"] | None = None,
        status: Literal["enable", "disable"] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change what is given of a user; return the brokers' addresses."""
        from rocketcore.protocol.bodies.auth import UserInfo

        if password is None and user_type is None and status is None:
            raise ConfigError("nothing to change of the user is given")
        body = UserInfo(username, password, user_type, status).encode()
        header = UpdateUserRequestHeader(username=_name(username))
        return await self._change(
            RequestCode.AUTH_UPDATE_USER, f"change of user {username!r}", header, cluster, broker, body
        )

    async def delete_user(self, username: str, *, cluster: str | None = None, broker: str | None = None) -> list[str]:
        """Delete a user with its policies; an unknown user is not an error. Return the brokers' addresses."""
        header = DeleteUserRequestHeader(username=_name(username))
        what = f"deletion of user {username!r}"
        return await self._change(RequestCode.AUTH_DELETE_USER, what, header, cluster, broker)

    async def policies(
        self, subject: str = "", resource: str = "", *, cluster: str | None = None, broker: str | None = None
    ) -> list[Policy]:
        """Return the policies whose subject and resource contain these texts, an entry each, sorted."""
        from rocketcore.protocol.bodies.auth import AclInfo

        request = Request(
            RequestCode.AUTH_LIST_ACL,
            "list of policies",
            lambda answer: _entries(AclInfo.from_json(each) for each in _array(answer)),
            ListAclsRequestHeader(subject_filter=subject or None, resource_filter=resource or None),
        )
        found = _laid_together(await self._asked_all(request, cluster, broker))
        return sorted(found, key=lambda each: (each.subject, each.resource, each.kind))

    async def grant(self, policy: Policy, *, cluster: str | None = None, broker: str | None = None) -> list[str]:
        """Put a policy in the place of the one for its subject and resource, or beside the others.

        Return the brokers' addresses.
        """
        from rocketcore.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo

        unknown = [each for each in policy.actions if each not in ACTIONS]
        if unknown or not policy.actions:
            raise ConfigError(f"an action is one of {', '.join(ACTIONS)}, got {', '.join(unknown) or 'none'}")
        entry = PolicyEntryInfo(policy.resource, list(policy.actions), list(policy.source_ips) or None, policy.decision)
        body = AclInfo(policy.subject, [PolicyInfo(policy.kind, [entry])]).encode()
        header = CreateAclRequestHeader(subject=_subject(policy.subject))
        what = f"policy of {policy.subject!r} for {policy.resource!r}"
        return await self._change(RequestCode.AUTH_CREATE_ACL, what, header, cluster, broker, body)

    async def revoke(
        self,
        subject: str,
        resource: str | None = None,
        *,
        kind: str = "Custom",
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Take a subject's policy for a resource away, all of them without one; return the brokers' addresses.

        A broker takes a resource that it cannot read for none: it is refused here.
        """
        if resource is not None:
            _check_resource(resource)
        header = DeleteAclRequestHeader(
            subject=_subject(subject), policy_type=None if resource is None else kind, resource=resource
        )
        what = f"deletion of the policies of {subject!r}" + ("" if resource is None else f" for {resource!r}")
        return await self._change(RequestCode.AUTH_DELETE_ACL, what, header, cluster, broker)

    # 4.x

    async def accounts(self, *, cluster: str | None = None, broker: str | None = None) -> Accounts:
        """Return the accounts of 4.x; a broker without access control does not answer (Java: ``getAclConfig``)."""
        request = Request(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, "list of accounts", _accounts_in)
        answers = await self._asked_all(request, cluster, broker)
        found = _laid_together({address: accounts for address, (accounts, _) in answers.items()})
        white = {address: addresses for address, (_, addresses) in answers.items()}
        return Accounts(tuple(sorted(found, key=lambda each: each.access_key)), white)

    async def put_account(
        self,
        access_key: str,
        secret_key: str,
        *,
        admin: bool = False,
        white_remote_address: str | None = None,
        default_topic_perm: str | None = None,
        default_group_perm: str | None = None,
        topic_perms: Sequence[str] = (),
        group_perms: Sequence[str] = (),
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Create an account of 4.x, or change it: settings that you leave out stay, except for ``admin``, and the
        secret is given each time. Return the brokers' addresses (Java: ``createAndUpdatePlainAccessConfig``)."""
        header = CreateAccessConfigRequestHeader(
            access_key=_name(access_key),
            secret_key=secret_key,
            white_remote_address=white_remote_address,
            admin=admin,
            default_topic_perm=default_topic_perm,
            default_group_perm=default_group_perm,
            topic_perms=",".join(topic_perms) or None,
            group_perms=",".join(group_perms) or None,
        )
        what = f"account {access_key!r}"
        return await self._change(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, what, header, cluster, broker)

    async def delete_account(
        self, access_key: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete an account of 4.x; return the brokers' addresses."""
        header = DeleteAccessConfigRequestHeader(access_key=_name(access_key))
        what = f"deletion of account {access_key!r}"
        return await self._change(RequestCode.DELETE_ACL_CONFIG, what, header, cluster, broker)

    async def set_white_addresses(
        self, white_addresses: Iterable[str], *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Say from which addresses brokers of 4.x ask for no account; return the brokers' addresses."""
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(
            global_white_addrs=",".join(white_addresses), acl_file_full_path=""
        )
        what = "change of the white addresses"
        return await self._change(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, what, header, cluster, broker)

    async def _asked_all(self, request: Request[T], cluster: str | None, broker: str | None) -> dict[str, T]:
        deadline = self._servers.deadline()
        members = await self._members_of(cluster, broker, deadline)
        return self._servers.known(await self._servers.each(members, request, deadline))

    async def _change(
        self, code: RequestCode, what: str, header: Header, cluster: str | None, broker: str | None, body: bytes = b""
    ) -> list[str]:
        deadline = self._servers.deadline()
        members = await self._members_of(cluster, broker, deadline)
        await self._servers.everywhere(Request(code, what, done, header, body), what, members, deadline)
        return members

    async def _members_of(self, cluster: str | None, broker: str | None, deadline: Deadline) -> list[str]:
        """Return the addresses of all members of brokers, masters and slaves."""
        views = (await self._servers.views(deadline)).values()
        found = {
            address
            for view in views
            for name, data in view.broker_addr_table.items()
            if broker in (None, name) and cluster in (None, data.cluster)
            for address in data.broker_addrs.values()
        }
        if not found:
            raise no_broker(broker, cluster)
        return sorted(found)


def _laid_together(tables: Mapping[str, list[E]]) -> list[E]:
    """Return what brokers have, by their addresses, each once and with those that have it so."""
    found: dict[E, list[str]] = {}
    for address, table in tables.items():
        for each in table:
            found.setdefault(each, []).append(address)
    return [replace(each, brokers=tuple(at)) for each, at in found.items()]


def _array(answer: RemotingCommand) -> list[Any]:
    """Return the members of a JSON array; nothing found is no body."""
    found = fastjson.loads(answer.body) if answer.body else []
    return found if isinstance(found, list) else []


def _user_in(said: UserInfo) -> User:
    return User(said.username or "", said.user_type or "Normal", said.user_status or "enable")


def _entries(acls: Iterable[AclInfo]) -> list[Policy]:
    return [
        Policy(
            acl.subject or "",
            entry.resource or "",
            tuple(entry.actions or ()),
            entry.decision or "",
            tuple(entry.source_ips or ()),
            policy.policy_type or "Custom",
        )
        for acl in acls
        for policy in acl.policies
        for entry in policy.entries
    ]


def _accounts_in(answer: RemotingCommand) -> tuple[list[Account], tuple[str, ...]]:
    said = fastjson.loads(answer.body) if answer.body else {}
    accounts = [
        Account(
            str(each.get("accessKey") or ""),
            bool(each.get("admin")),
            each.get("whiteRemoteAddress") or None,
            each.get("defaultTopicPerm"),
            each.get("defaultGroupPerm"),
            tuple(each.get("topicPerms") or ()),
            tuple(each.get("groupPerms") or ()),
        )
        for each in said.get("plainAccessConfigs") or ()
    ]
    return accounts, tuple(said.get("globalWhiteAddrs") or ())


def _name(name: str) -> str:
    if not name.strip():
        raise ConfigError("an account has a name")
    return name


def _subject(subject: str) -> str:
    if not subject.startswith("User:") or not subject.removeprefix("User:").strip():
        raise ConfigError(f"a subject is User:NAME, got {subject!r}")
    return subject


def _check_resource(resource: str) -> None:
    kind, _, name = resource.partition(":")
    if resource != "*" and (kind not in ("Cluster", "Namespace", "Topic", "Group") or not name):
        raise ConfigError(f"a resource is *, Cluster:…, Namespace:…, Topic:… or Group:…, got {resource!r}")

"""Headers of users and access rules: auth of 5.3 and the ACL of 4.x."""

from __future__ import annotations

from rocketcore.protocol.schema import Header


class CreateUserRequestHeader(Header):
    """AUTH_CREATE_USER (3001)."""

    username: str | None = None


class UpdateUserRequestHeader(Header):
    """AUTH_UPDATE_USER (3002)."""

    username: str | None = None


class DeleteUserRequestHeader(Header):
    """AUTH_DELETE_USER (3003)."""

    username: str | None = None


class GetUserRequestHeader(Header):
    """AUTH_GET_USER (3004)."""

    username: str | None = None


class ListUsersRequestHeader(Header):
    """AUTH_LIST_USER (3005)."""

    filter: str | None = None


class CreateAclRequestHeader(Header):
    """AUTH_CREATE_ACL (3006)."""

    subject: str | None = None


class UpdateAclRequestHeader(Header):
    """AUTH_UPDATE_ACL (3007)."""

    subject: str | None = None


class DeleteAclRequestHeader(Header):
    """AUTH_DELETE_ACL (3008)."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class GetAclRequestHeader(Header):
    """AUTH_GET_ACL (3009)."""

    subject: str | None = None


class ListAclsRequestHeader(Header):
    """AUTH_LIST_ACL (3010)."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class CreateAccessConfigRequestHeader(Header):
    """UPDATE_AND_CREATE_ACL_CONFIG (50) [4.9]."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAccessConfigRequestHeader(Header):
    """DELETE_ACL_CONFIG (51) [4.9]."""

    access_key: str


class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53) [4.9]."""

    global_white_addrs: str
    acl_file_full_path: str


class GetBrokerAclConfigResponseHeader(Header):
    """Answer to GET_BROKER_CLUSTER_ACL_INFO (52) [4.9]."""

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None

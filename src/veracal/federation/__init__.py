"""Recalibration across institutions that do not share records."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.federation.coordinator.history import RequestHistory
    from veracal.federation.coordinator.pool import (
        RemotePool,
        RoundEvent,
        SourcePlan,
        check_plan,
        plan_sources,
        recalibration_record,
        source_costs,
    )
    from veracal.federation.coordinator.remote import METHOD_KINDS
    from veracal.federation.coordinator.source_list import (
        KEY_FILE,
        LIST_FILE,
        PUBLIC_KEY_FILE,
        TRANSPORT_KINDS,
        ConfiguredTransport,
        MemberStatus,
        SourceList,
        TransportKind,
        add_source,
        check_compatible,
        create_federation,
        prepare_folder,
        read_source_list,
        read_terms,
        summarize_members,
    )
    from veracal.federation.flower.superlink import (
        LOCAL_HOSTS,
        SuperLink,
        find_port,
        make_server_files,
        start_process,
        stop_process,
    )
    from veracal.federation.flower.supernode import serve_node
    from veracal.federation.flower.transport import register_nodes
    from veracal.federation.flower.wire import make_node_key, read_public_node_key
    from veracal.federation.protocol.envelopes import (
        MAX_REPLY_BYTES,
        MAX_REQUEST_BYTES,
        PrivateKey,
        PublicKey,
        is_hexadecimal,
    )
    from veracal.federation.protocol.queries import (
        DEFAULT_KINDS,
        KINDS,
        decode_map,
        describe_terms,
    )
    from veracal.federation.protocol.terms import Terms, artifact_hash, model_hash
    from veracal.federation.source.enrolling import (
        Declaration,
        Proposal,
        accept,
        data_event,
        enroll,
        propose,
        revoke,
    )
    from veracal.federation.source.enrollment import (
        TERMS,
        AnsweredRequest,
        AnswerLog,
        Enrollment,
        RecordFile,
        find_problems,
        find_share_problems,
        list_enrollments,
        read_answer_log,
        read_enrollment,
    )
    from veracal.federation.source.folder import (
        ENROLLED,
        DigestKey,
        SourceFolder,
        create_source,
        read_source,
        share_event,
    )
    from veracal.federation.source.serving import SourceServer, open_source
    from veracal.federation.transports import (
        ANSWER_SUFFIX,
        REQUEST_SUFFIX,
        deliver_file,
        list_names,
        read_untrusted_file,
        serve_folder,
        slug,
    )

__all__ = [
    "ANSWER_SUFFIX",
    "DEFAULT_KINDS",
    "ENROLLED",
    "KEY_FILE",
    "KINDS",
    "LIST_FILE",
    "LOCAL_HOSTS",
    "MAX_REPLY_BYTES",
    "MAX_REQUEST_BYTES",
    "METHOD_KINDS",
    "PUBLIC_KEY_FILE",
    "REQUEST_SUFFIX",
    "TERMS",
    "TRANSPORT_KINDS",
    "AnswerLog",
    "AnsweredRequest",
    "ConfiguredTransport",
    "Declaration",
    "DigestKey",
    "Enrollment",
    "MemberStatus",
    "PrivateKey",
    "Proposal",
    "PublicKey",
    "RecordFile",
    "RemotePool",
    "RequestHistory",
    "RoundEvent",
    "SourceFolder",
    "SourceList",
    "SourcePlan",
    "SourceServer",
    "SuperLink",
    "Terms",
    "TransportKind",
    "accept",
    "add_source",
    "artifact_hash",
    "check_compatible",
    "check_plan",
    "create_federation",
    "create_source",
    "data_event",
    "decode_map",
    "deliver_file",
    "describe_terms",
    "enroll",
    "find_port",
    "find_problems",
    "find_share_problems",
    "is_hexadecimal",
    "list_enrollments",
    "list_names",
    "make_node_key",
    "make_server_files",
    "model_hash",
    "open_source",
    "plan_sources",
    "prepare_folder",
    "propose",
    "read_answer_log",
    "read_enrollment",
    "read_public_node_key",
    "read_source",
    "read_source_list",
    "read_terms",
    "read_untrusted_file",
    "recalibration_record",
    "register_nodes",
    "revoke",
    "serve_folder",
    "serve_node",
    "share_event",
    "slug",
    "source_costs",
    "start_process",
    "stop_process",
    "summarize_members",
]

__getattr__, __dir__ = attach(__name__)

"""ServerArgs: options of the HTTP server, under vLLM's names. Those of the engine are in EngineArgs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError, UnsupportedError
from octavo.utils.names import closest_names


def _option(default: Any, help: str, choices: tuple[str, ...] | None = None) -> Any:
    metadata = {"help": help, "choices": choices, "in_cli": True}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


_LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


@dataclass(frozen=True)
class ServerArgs:
    """Options of one HTTP server; each field's help text is in its metadata and on the command line."""

    host: str = _option("127.0.0.1", "address to listen on; 0.0.0.0: every network, use an API key then")
    port: int = _option(8000, "port; 0: any free one")
    uds: str | None = _option(None, "listen on this unix socket instead of host and port")
    api_key: list[str] = _option([], "key that requests must carry (OCTAVO_API_KEY); can be repeated")
    ssl_keyfile: str | None = _option(None, "private key for HTTPS")
    ssl_certfile: str | None = _option(None, "certificate for HTTPS")
    ssl_ca_certs: str | None = _option(None, "certificates of authorities that client certificates must come from")
    ssl_cert_reqs: int = _option(0, "client certificates: 0 none, 1 optional, 2 required")
    ssl_ciphers: str | None = _option(None, "ciphers for HTTPS, in OpenSSL's format")
    allowed_origins: list[str] = _option([], "web pages of these origins may use the server (CORS); * for all")
    allowed_methods: list[str] = _option(["*"], "methods that they may use")
    allowed_headers: list[str] = _option(["*"], "headers that they may send")
    allow_credentials: bool = _option(False, "let them send credentials")
    api_server_count: int | None = _option(None, "processes that serve HTTP in front of the same engine (1)")
    headless: bool = _option(
        False, "serve no HTTP: run engine replicas for the server at data_parallel_address, on another machine"
    )
    root_path: str | None = _option(None, "path under which a proxy shows the server")
    middleware: list[str] = _option([], "module.Class of an ASGI middleware; can be repeated")

    lora_modules: list[str] = _option([], 'LoRA adapters: name=path, or JSON {"name": ..., "path": ...}')
    enable_request_id_headers: bool = _option(False, "answer with X-Request-Id")
    disable_access_log: bool = _option(False, "log no line per HTTP request (also --disable-uvicorn-access-log)")
    disable_access_log_for_endpoints: str | None = _option(None, "paths without a log line, separated by commas")
    uvicorn_log_level: str = _option("warning", "least severity that uvicorn logs", _LOG_LEVELS)
    enable_log_requests: bool = _option(False, "log each request's length and parameters")
    enable_log_outputs: bool = _option(False, "log each request's output (needs enable_log_requests)")
    max_log_len: int | None = _option(None, "most characters of a prompt or output in the log (no text of prompts: 0)")
    stats_interval_s: float = _option(10.0, "seconds between two lines about speed and load while busy; 0: none")
    metrics_prefix: str = _option("octavo", "prefix of the names at /metrics; vllm for dashboards made for vLLM")
    disable_docs: bool = _option(False, "no /docs and no /openapi.json (also --disable-fastapi-docs)")

    chat_template: str | None = _option(None, "Jinja file, or Jinja source, used instead of the model's chat template")
    chat_template_content_format: str = _option(
        "auto", "whether templates get message content as text or as parts", ("auto", "string", "openai")
    )
    trust_request_chat_template: bool = _option(False, "let requests bring their own chat template")
    default_chat_template_kwargs: dict[str, Any] = _option({}, "JSON object of variables for the chat template")
    response_role: str = _option("assistant", "role of answers")
    tool_call_parser: str = _option("auto", "format of tool calls; auto: as the chat template shows; none: no parsing")
    tool_parser_plugin: str | None = _option(None, "Python file that registers further formats of tool calls")
    enable_auto_tool_choice: bool = _option(True, 'let the model decide whether to call (tool_choice "auto")')
    tool_strict_level: str = _option(
        "auto", "none: strict functions that the model may call or not are like others", ("auto", "none")
    )
    exclude_tools_when_tool_choice_none: bool = _option(False, "hide tools from the template with tool_choice none")
    return_tokens_as_token_ids: bool = _option(False, 'logprobs name tokens "token_id:N"')
    enable_prompt_tokens_details: bool = _option(True, "usage tells how many prompt tokens came from the prefix cache")
    enable_force_include_usage: bool = _option(False, "every stream tells its usage in every chunk")
    sse_keep_alive_interval: float = _option(0.0, "seconds after which a silent stream sends a comment; 0: never")

    max_num_queued_reqs: int = _option(2048, "sequences that may wait; more get status 503; 0: no limit")
    max_num_queued_tokens: int = _option(0, "prompt tokens that may be in work; more get status 503; 0: no limit")
    max_request_bytes: int = _option(16 * 1024 * 1024, "largest body of a request")
    max_header_bytes: int = _option(64 * 1024, "largest head of a request (also --h11-max-incomplete-event-size)")
    max_header_count: int = _option(256, "most header lines of a request (also --h11-max-header-count)")
    max_prompts_per_request: int = _option(1024, "most prompts in one completion request")
    max_sequences_per_request: int = _option(2048, "most answers (prompts times n) in one request")
    max_stop_strings: int = _option(4, "most stop strings in one request")
    request_timeout_s: float = _option(30.0, "seconds a client may take to send the head of a request")
    shutdown_timeout: float = _option(10.0, "seconds that running requests get to finish when the server is stopped")

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in _AT_LEAST_ZERO:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if any(not key or key != key.strip() for key in self.api_key):  # "" would be no key to the operator's surprise
            raise ConfigError(
                "api_key (OCTAVO_API_KEY) is empty or has space around it, so that no request could carry it; for a "
                "server without keys leave it out, or unset the variable"
            )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be from 0 to 65535, got {self.port}")
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile) and not self.ssl_certfile:
            raise ConfigError("ssl_keyfile needs ssl_certfile")
        for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
            if getattr(self, name) is not None and not Path(getattr(self, name)).is_file():
                raise ConfigError(f"{name} must be a file, got {getattr(self, name)!r}, which is none")
        if self.root_path and not self.root_path.startswith("/"):
            raise ConfigError(f"root_path must begin with a slash, got {self.root_path!r}")
        if not self.metrics_prefix.isidentifier():
            raise ConfigError(f"metrics_prefix must be letters, digits and _, got {self.metrics_prefix!r}")

    @staticmethod
    def unbuilt_options() -> Mapping[str, tuple[tuple[Any, ...], str]]:
        """Return the options that are known by name only."""
        return UNBUILT_SERVER_OPTIONS

    @classmethod
    def from_kwargs(cls, **options: Any) -> ServerArgs:
        """Build from options; those that are known and not built raise UnsupportedError unless they ask for nothing."""
        known = {option.name for option in dataclasses.fields(cls)}
        for name in options.keys() - known:
            if name not in UNBUILT_SERVER_OPTIONS:
                raise ConfigError(f"unknown server option {name!r}{closest_names(name, known)}")
            neutral, reason = UNBUILT_SERVER_OPTIONS[name]
            if options[name] not in neutral:
                raise UnsupportedError(f"{name}={options[name]!r} is not supported: {reason}; leave it out")
        return cls(**{name: value for name, value in options.items() if name in known})


_AT_LEAST_ONE = (
    *("api_server_count", "max_request_bytes", "max_header_bytes", "max_header_count", "max_prompts_per_request"),
    *("max_sequences_per_request", "max_stop_strings"),
)
_AT_LEAST_ZERO = (
    *("max_num_queued_reqs", "max_num_queued_tokens", "request_timeout_s", "shutdown_timeout"),
    *("stats_interval_s", "sse_keep_alive_interval"),
)

# vLLM's server option -> (values that ask for nothing, what is missing)
UNBUILT_SERVER_OPTIONS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "tool_server": ((None,), "this server runs no tools itself"),
    "trust_request_mm_kwargs": ((False,), "multimodal input is not built"),
    "enable_ssl_refresh": ((False,), "restart the server to read new certificates"),
    "grpc": ((False,), "gRPC is not built"),
    "enable_scale_out": ((False,), "token-in, token-out endpoints are not built"),
    "tokens_only": ((False,), "token-in, token-out endpoints are not built"),
    "enable_per_request_metrics": ((False,), "timings in responses are not built"),
    # these ask for what always is so
    "enable_offline_docs": ((False, True), ""),
    "enable_tokenizer_info_endpoint": ((False, True), ""),
    "enable_server_load_tracking": ((False, True), ""),
    "disable_log_requests": ((False, True), ""),
}

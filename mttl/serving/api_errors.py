"""Why a request is not answered, in the form in which OpenAI's clients read it."""

from typing import Any

from mttl.io.errors import MttlError

TRY_AGAIN = (429, 503)
RETRY_AFTER = "1"  # seconds: a batch takes about that


class ApiError(MttlError):
    """A refused request, with an HTTP status, the wrong parameter and an error code."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {
            "error": {
                "message": str(self),
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """When to try again, where that helps."""
        return {"Retry-After": RETRY_AFTER} if self.status in TRY_AGAIN else {}

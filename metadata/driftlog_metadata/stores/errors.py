"""How remote state fails, by what the caller may do next.

Adapters translate every foreign exception into one of these; an unknown one
becomes `OutcomeUnknownError`.

Pure.
"""


class StoreError(Exception):
    """Base of every error that a port to remote state may raise."""


class UnavailableError(StoreError):
    """Refused (throttled, overloaded, no quorum, disk full).  Nothing happened; retry."""


class DeclinedError(UnavailableError):
    """Understood and declined (credentials, a name): a retry fails until an operator repairs it."""


class StoreNotOursError(DeclinedError):
    """The store is not the one that this process has seen (`witness`): no request was sent."""


class OutcomeUnknownError(StoreError):
    """The answer was lost (timeout, reset).  It may have happened; retry what is idempotent."""


class AnswerTooLargeError(OutcomeUnknownError):
    """The answer is over the client's limit, each time: read less at once."""


class FencedError(StoreError):
    """A newer owner is in charge.  Nothing happened, or will happen later; step down."""


class CorruptError(Exception):
    """The bytes are not of the expected format: hang up, or quarantine; always logged."""


class UnsupportedFormatError(CorruptError):
    """The bytes are of a newer driftlog, and not damaged: upgrade this one."""

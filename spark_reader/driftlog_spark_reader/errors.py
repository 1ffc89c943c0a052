"""Why a topic cannot be read, in a message for the person at the DataFrame.

Pure.
"""


class ReadTopicError(Exception):
    """Base of what `read_topic` raises; an argument that makes no sense is a ValueError."""


class StorageError(ReadTopicError):
    """The location cannot be read: not there, no credentials, no connector, or a failing store."""


class UnknownTopicError(ReadTopicError):
    """No topic of that name (or id) lies at the location."""


class DeletedTopicError(ReadTopicError):
    """The topic is deleted; its objects are going."""


class AmbiguousTopicError(ReadTopicError):
    """Several live topics have that name: say which id."""


class DamagedTopicError(ReadTopicError):
    """An object that the topic's files name is damaged or missing."""


class OffsetOutOfRangeError(ReadTopicError):
    """An offset that was asked for is not in the sealed log."""


class RawSegmentSkippedWarning(UserWarning):
    """A range whose batches could not be decoded is not in the DataFrame."""

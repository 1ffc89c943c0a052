"""Kafka's wire protocol: frames to messages and back, without I/O.

`requests/registry` has every API by key and reads request headers, `api` reads and writes the two
messages of one API, `messages` defines them, `errors` names what goes wrong.  `schema` and
`compiler` turn definitions into functions; no other package needs them.
Pure.
"""

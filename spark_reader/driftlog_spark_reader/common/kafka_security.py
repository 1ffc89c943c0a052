"""Java's client properties about encryption and authentication, in librdkafka's words.

    sasl.jaas.config=…LoginModule required …;      sasl.username, sasl.password
    ssl.truststore.location, PEM                   ssl.ca.location
    ssl.keystore.location, PEM                     certificate and key, both of that file
    ssl.keystore.location, PKCS#12                 as it is
    ssl.endpoint.identification.algorithm=         none

Java's key stores (JKS) have no counterpart.  No message shows a JAAS config: it has a password.

Sources: org.apache.kafka.common.config.SslConfigs, SaslConfigs; org.apache.kafka.common.security.
JaasConfig; librdkafka's CONFIGURATION.md.

Pure.
"""

import re
from collections.abc import Mapping
from typing import Final

_JAAS: Final = "sasl.jaas.config"
_IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
_RENAMED: Final = {
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}

SECURITY: Final = frozenset(
    {
        _JAAS,
        _IDENTIFICATION,
        *_RENAMED,
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""The properties that `security_properties` translates.  Others have the same name in both."""

_LOGIN: Final = re.compile(r"\s*\S+\.(?:PlainLoginModule|ScramLoginModule)\s+required\s")
_CREDENTIAL: Final = re.compile(r'\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))')


def security_properties(java: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's properties for those of *java* that are in `SECURITY`.

    Raises:
        ValueError: one has no counterpart.
    """
    found = {known_as: java[name] for name, known_as in _RENAMED.items() if name in java}
    if (algorithm := java.get(_IDENTIFICATION)) is not None:
        found[_IDENTIFICATION] = algorithm.strip() or "none"
    if (jaas := java.get(_JAAS)) is not None:
        found |= _credentials(jaas)
    return found | _stores(java)


def _credentials(jaas: str) -> dict[str, str]:
    fields = {
        name: re.sub(r"\\(.)", r"\1", quoted) if quoted else plain
        for name, quoted, plain in _CREDENTIAL.findall(jaas)
    }
    if not _LOGIN.match(jaas) or fields.keys() != {"username", "password"}:
        raise ValueError(
            f"Kafka option '{_JAAS}' is understood for PlainLoginModule and ScramLoginModule with "
            "username and password; for others, give librdkafka's own options, which begin with "
            "kafka.sasl., such as kafka.sasl.oauthbearer.config"
        )
    return {f"sasl.{name}": value for name, value in fields.items()}


def _stores(java: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if location := java.get("ssl.truststore.location"):
        _check_type(java, "ssl.truststore", ("PEM",), "kafka.ssl.ca.location")
        found["ssl.ca.location"] = location
    if location := java.get("ssl.keystore.location"):
        instead = "kafka.ssl.certificate.location and kafka.ssl.key.location"
        if _check_type(java, "ssl.keystore", ("PEM", "PKCS12"), instead) == "PEM":
            found |= {"ssl.certificate.location": location, "ssl.key.location": location}
        else:
            found["ssl.keystore.location"] = location
    return found


def _check_type(java: Mapping[str, str], store: str, known: tuple[str, ...], instead: str) -> str:
    kind = java.get(f"{store}.type", "JKS").strip().upper()
    if kind not in known:
        raise ValueError(
            f"Kafka option '{store}.type' is {kind}: librdkafka reads {' and '.join(known)}; "
            f"convert the store and set the type, or give {instead}"
        )
    return kind

"""Java's properties about encryption and authentication mean the same to librdkafka, or are refused
with what to do."""

import confluent_kafka
import pytest

from driftlog_spark_reader.common.kafka_security import security_properties

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.mark.parametrize(
    "jaas",
    [
        PLAIN + ' username="me" password="a \\"b\\" \\\\ c;";',
        SCRAM + '\n  password="a \\"b\\" \\\\ c;"\n  username=me;',
    ],
)
def test_user_and_password_come_out_of_jaas(jaas: str) -> None:
    """
    For PLAIN and SCRAM, quoted or not.
    """
    found = security_properties({"sasl.jaas.config": jaas})

    assert {"sasl.username": "me", "sasl.password": 'a "b" \\ c;'} == found


@pytest.mark.parametrize(
    ("java", "expected"),
    [
        (
            {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/ca.pem",
                "ssl.truststore.password": "unused",
                "ssl.keystore.type": "pem",
                "ssl.keystore.location": "/me.pem",
                "ssl.endpoint.identification.algorithm": "",
            },
            {
                "ssl.ca.location": "/ca.pem",
                "ssl.certificate.location": "/me.pem",
                "ssl.key.location": "/me.pem",
                "ssl.endpoint.identification.algorithm": "none",
            },
        ),
        (
            {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/me.p12"},
            {"ssl.keystore.location": "/me.p12"},
        ),
        (
            {
                "ssl.truststore.certificates": "A",
                "ssl.keystore.certificate.chain": "B",
                "ssl.keystore.key": "C",
                "ssl.endpoint.identification.algorithm": "https",
            },
            {
                "ssl.ca.pem": "A",
                "ssl.certificate.pem": "B",
                "ssl.key.pem": "C",
                "ssl.endpoint.identification.algorithm": "https",
            },
        ),
    ],
)
def test_stores_and_certificates_are_librdkafkas(
    java: dict[str, str], expected: dict[str, str]
) -> None:
    """
    Of PEM and PKCS#12.
    """
    assert expected == security_properties(java)


def test_librdkafka_takes_them() -> None:
    """
    A client is made with user, password and no check of host names.
    """
    found = security_properties(
        {
            "sasl.jaas.config": SCRAM + ' username="me" password="p";',
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    protocol = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256"}

    confluent_kafka.Consumer({**found, **protocol, "group.id": "g"}).close()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ssl.truststore.location", "/ca.jks", "type' is JKS: .*PEM; .*kafka.ssl.ca.location"),
        ("ssl.keystore.location", "/me.jks", "PEM and PKCS12"),
        ("sasl.jaas.config", "x.Krb5LoginModule required;", "PlainLoginModule.*oauthbearer"),
        ("sasl.jaas.config", SCRAM + ' username="ann";', "password"),
    ],
)
def test_what_has_no_counterpart_is_refused(name: str, value: str, said: str) -> None:
    """
    The message says what to give instead.
    """
    with pytest.raises(ValueError, match=said):
        security_properties({name: value})


def test_no_message_tells_a_password() -> None:
    """
    A JAAS config that is not understood holds one.
    """
    jaas = 'com.example.OwnLoginModule required username="me" password="secret";'

    with pytest.raises(ValueError) as raised:
        security_properties({"sasl.jaas.config": jaas})

    assert "secret" not in str(raised.value)

"""The manifests are what Kubernetes takes, fit each other, and give an agent time to drain.

Shell.
"""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.components import REPOSITORY
from tests.support.driftlog_process import driftlog_command

FOLDER: Final = REPOSITORY / "deploy" / "kubernetes"
VERSIONS: Final = ("1.33", "1.35")
"""The oldest with all that the manifests use, and the one that tells pods their zone."""


def manifests() -> Iterator[dict[str, Any]]:
    for file in sorted(FOLDER.glob("*.yaml")):
        yield from yaml.safe_load_all(file.read_text())


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests() if manifest["kind"] == kind]


@pytest.fixture
def agents() -> dict[str, Any]:
    """The specification of the StatefulSet."""
    [found] = of_kind("StatefulSet")
    specification: dict[str, Any] = found["spec"]
    return specification


@pytest.fixture
def agent(agents: dict[str, Any]) -> dict[str, Any]:
    """The one container."""
    [container] = agents["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_each_manifest_fits_its_schema(version: str) -> None:
    """
    Of Kubernetes itself, and with no field that it does not know.
    """
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="no kubernetes-validate: make setup"
    )

    for manifest in manifests():
        schemas.validate(manifest, version, strict=True)


def test_names_and_labels_that_refer_to_each_other_agree(agents: dict[str, Any]) -> None:
    """
    Services and the budget find the agents' pods, and the pods their configuration.
    """
    labels = agents["template"]["metadata"]["labels"]
    pod = agents["template"]["spec"]
    selectors = [
        agents["selector"]["matchLabels"],
        *(service["spec"]["selector"] for service in of_kind("Service")),
        *(budget["spec"]["selector"]["matchLabels"] for budget in of_kind("PodDisruptionBudget")),
        *(spread["labelSelector"]["matchLabels"] for spread in pod["topologySpreadConstraints"]),
    ]
    services = {service["metadata"]["name"] for service in of_kind("Service")}
    maps = {found["metadata"]["name"] for found in of_kind("ConfigMap")}
    accounts = {found["metadata"]["name"] for found in of_kind("ServiceAccount")}
    volumes = {volume["name"] for volume in pod["volumes"]}
    claims = {claim["metadata"]["name"] for claim in agents["volumeClaimTemplates"]}
    [container] = pod["containers"]

    assert [labels] * len(selectors) == selectors
    assert agents["serviceName"] in services
    assert {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v} <= maps
    assert pod["serviceAccountName"] in accounts
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes | claims


def test_the_addresses_of_an_agent_are_those_of_its_ports(
    agents: dict[str, Any], agent: dict[str, Any]
) -> None:
    """
    Clients learn the pod's name in the headless service, and probes ask the HTTP port.
    """
    ports = {port["name"]: port["containerPort"] for port in agent["ports"]}
    variables = {each["name"]: each.get("value", "") for each in agent["env"]}
    name = f"$(POD_NAME).{agents['serviceName']}.$(POD_NAMESPACE).svc.cluster.local"

    assert {"kafka": 9092, "http": 9644} == ports
    assert f"{name}:9092" == variables["DRIFTLOG_ADVERTISED_LISTENER"]
    assert "$(POD_IP):9644" == variables["DRIFTLOG_HTTP_LISTENER"]
    paths = {
        probe: agent[probe]["httpGet"]["path"]
        for probe in ("livenessProbe", "readinessProbe", "startupProbe")
    }
    assert {
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
        "startupProbe": "/healthz",
    } == paths


def test_an_agent_that_only_seals_is_an_agent_without_clients_and_disk(
    agents: dict[str, Any], agent: dict[str, Any]
) -> None:
    """
    No service leads to it; the policy, by which leaders reach its HTTP port, is of both.  All else
    of its pod is as the other agents have it.
    """
    [seals] = of_kind("Deployment")
    labels = seals["spec"]["template"]["metadata"]["labels"]
    pod = seals["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [scaler] = of_kind("HorizontalPodAutoscaler")
    [policy] = of_kind("NetworkPolicy")
    sources = [each["from"][-1]["podSelector"] for each in policy["spec"]["ingress"]]
    own, theirs = (
        {variable["name"]: variable for variable in each["env"]} for each in (container, agent)
    )

    assert seals["spec"]["selector"]["matchLabels"] == labels
    assert [] == [s for s in of_kind("Service") if s["spec"]["selector"].items() <= labels.items()]
    assert [{"matchLabels": policy["spec"]["podSelector"]["matchLabels"]}] * 2 == sources
    both = labels.items() & agents["template"]["metadata"]["labels"].items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= both
    assert "replicas" not in seals["spec"]
    target = scaler["spec"]["scaleTargetRef"]
    assert (seals["kind"], seals["metadata"]["name"]) == (target["kind"], target["name"])

    assert "seal" == own.pop("DRIFTLOG_ROLES")["value"]
    assert "$(POD_IP):9092" == own.pop("DRIFTLOG_ADVERTISED_LISTENER")["value"]
    assert own.items() == {name: theirs[name] for name in own}.items()
    assert theirs.keys() - own.keys() == {
        *("POD_NAME", "POD_NAMESPACE", "DRIFTLOG_ADVERTISED_LISTENER")
    }
    assert pod["volumes"][-1]["emptyDir"]["sizeLimit"] == container["resources"]["requests"].pop(
        "ephemeral-storage"
    )
    for each in (container, agent):
        del each["env"], each["resources"]["requests"]["cpu"]
    assert agent == container
    assert "emptyDir" in pod["volumes"].pop()
    expected = json.dumps(agents["template"]["spec"] | {"containers": []}, sort_keys=True)
    found = json.dumps(pod | {"containers": []}, sort_keys=True)
    assert expected == found.replace('"seal-agent"', '"agent"')


def test_the_scrape_keeps_the_agents_of_both_manifests(agents: dict[str, Any]) -> None:
    """
    The collector runs on agents that seal, where there are some.
    """
    page = (REPOSITORY / "observability" / "README.md").read_text()
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    jobs = [job for block in blocks for job in block["scrape_configs"]]
    [job] = [job for job in jobs if "kubernetes_sd_configs" in job]
    [rule] = job["relabel_configs"]
    [seals] = of_kind("Deployment")
    templates = [agents["template"], seals["spec"]["template"]]

    for template in templates:
        labels = template["metadata"]["labels"]
        [port] = [
            port["name"]
            for port in template["spec"]["containers"][0]["ports"]
            if port["name"] in rule["regex"]
        ]
        kept = ";".join(
            [labels["app.kubernetes.io/name"], labels["app.kubernetes.io/component"], port]
        )
        assert re.fullmatch(rule["regex"], kept)


def test_a_pod_is_confined_and_has_time_to_drain(
    agents: dict[str, Any], agent: dict[str, Any]
) -> None:
    """
    No root, no capability, a root file system that is read only; an agent ends after 28 s itself.
    """
    pod = agents["template"]["spec"]

    assert 28 < pod["terminationGracePeriodSeconds"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert agent["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [1] == [budget["spec"]["maxUnavailable"] for budget in of_kind("PodDisruptionBudget")]


def test_an_agent_reads_the_configuration(agent: dict[str, Any], tmp_path: Path) -> None:
    """
    Each setting of the file is one of `driftlog agent run`, and so is each variable of the pod.
    """
    [configuration] = of_kind("ConfigMap")
    text = configuration["data"]["agent.toml"]
    command = str(driftlog_command())
    told = _told(command, "agent", "run", "--help").stdout
    [seals] = of_kind("Deployment")
    given = [*agent["env"], *seals["spec"]["template"]["spec"]["containers"][0]["env"]]
    variables = [v["name"] for v in given if v["name"].startswith("DRIFTLOG_")]
    options = [name.removeprefix("DRIFTLOG_").lower().replace("_", "-") for name in variables]

    named = [*tomllib.loads(text), *options]
    assert [] == [name for name in named if f"--{name} " not in told]
    assert ["--config-file", "/etc/driftlog/agent.toml"] == agent["args"]

    file = tmp_path / "agent.toml"
    file.write_text(text)
    shown = _told(command, "agent", "config", "--config-file", str(file), "--dir", str(tmp_path))
    assert 0 == shown.returncode, shown.stderr
    assert "s3://example-log/log" in shown.stdout


def _told(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)

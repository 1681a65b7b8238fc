"""The helm chart renders valid, safe and complete objects, and refuses invalid values."""

import functools
import json
import re
import tomllib

import jsonschema
import kubernetes_validate
import pytest
import yaml
from rendering import CHART, KUBERNETES, REFUSED, ROOT, VALUES, configs, matches, named, objects, of_kind, one, pod_specs, run, template

EVERY = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
# What single entries, and the Jobs of their images, add to the security context.
OWN_USERS = {("apps", name): {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000} for name in ("shop-images", "shop-topics-2")}
BUILT_IN = {"apps/v1", "autoscaling/v2", "batch/v1", "networking.k8s.io/v1", "policy/v1", "v1"}


@EVERY
def test_lint_reports_nothing(values):
    done = run("helm", "lint", "--strict", CHART, "--kube-version", KUBERNETES[-1], "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr


@EVERY
@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_validate_against_their_schemas(values, version):
    for document in objects(values, version):
        if document["apiVersion"] in BUILT_IN:
            kubernetes_validate.validate(document, version, strict=True)
        else:
            schema = custom_resource(document["apiVersion"], document["kind"])
            jsonschema.Draft202012Validator(schema).validate(document)


@functools.cache
def custom_resource(api_version, kind):
    """Returns the schema of a custom resource of Prometheus or KEDA."""
    group, version = api_version.split("/")
    (file,) = (ROOT / "target/tools/crds").glob(f"*/{group}_{kind.lower()}s.yaml")
    versions = yaml.safe_load(file.read_text())["spec"]["versions"]
    (schema,) = (one["schema"]["openAPIV3Schema"] for one in versions if one["name"] == version)
    # Kubernetes itself checks the metadata, of which the definition says nothing.
    schema["properties"]["metadata"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return strict(schema)


def strict(schema):
    """Returns a schema that refuses unknown fields, which Kubernetes drops."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PrometheusRule", "ScaledObject"])
def test_unknown_field_of_a_custom_resource_is_found(kind):
    document = of_kind(named("keda"), kind)[0]
    document["spec"]["noSuchField"] = 1
    with pytest.raises(jsonschema.ValidationError, match="noSuchField"):
        jsonschema.Draft202012Validator(custom_resource(document["apiVersion"], kind)).validate(document)


def test_older_kubernetes_is_refused():
    done = template(named("default"), "1.29")
    assert done.returncode != 0 and "kubeVersion" in done.stderr


@EVERY
def test_names_are_short_and_unique(values):
    names = [(document["kind"], document["metadata"]["name"]) for document in objects(values)]
    assert len(names) == len(set(names))
    # KEDA uses the name with the prefix `keda-hpa-` as a label.
    assert all(len(name) <= 63 - len("keda-hpa-") for _, name in names)


@EVERY
def test_pods_have_least_privileges(values):
    for name, _, spec in pod_specs(values):
        own = OWN_USERS.get((values.stem, name), {})
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} | own, name
        assert spec["automountServiceAccountToken"] is False, name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert container["resources"]["requests"] and container["resources"]["limits"]["memory"], name


@EVERY
def test_pods_can_write_to_tmp_only(values):
    for name, _, spec in pod_specs(values):
        mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert "sizeLimit" in volumes[mounts.pop("/tmp")["name"]]["emptyDir"], name
        assert all(mount.get("readOnly") for mount in mounts.values()), name
        assert {mount["name"] for mount in mounts.values()} <= set(volumes), name


@EVERY
def test_probes_use_the_configured_port(values):
    for document in of_kind(values, "Deployment"):
        template = document["spec"]["template"]
        container = template["spec"]["containers"][0]
        role = template["metadata"]["labels"]["app.kubernetes.io/component"]
        listen = configuration(values)["api" if role == "api" else "ops"]["listen"]
        (port,) = container["ports"]
        assert listen.endswith(f":{port['containerPort']}")
        for probe, path in [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]:
            assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}


@EVERY
def test_each_deployment_has_one_disruption_budget(values):
    budgets = of_kind(values, "PodDisruptionBudget")
    for deployment in of_kind(values, "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        mine = [budget for budget in budgets if matches(budget["spec"]["selector"]["matchLabels"], labels)]
        assert len(mine) == 1 and mine[0]["spec"]["maxUnavailable"] == 1, deployment["metadata"]["name"]
    assert len(budgets) == len(of_kind(values, "Deployment"))


@EVERY
def test_selectors_are_disjoint(values):
    pods = [labels for _, labels, _ in pod_specs(values)]
    for deployment in of_kind(values, "Deployment"):
        selector = deployment["spec"]["selector"]["matchLabels"]
        assert sum(matches(selector, labels) for labels in pods) == 1, deployment["metadata"]["name"]
        for constraint in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]:
            assert constraint["labelSelector"]["matchLabels"] == selector


@EVERY
def test_secrets_are_references(values):
    assert not of_kind(values, "Secret")
    for _, _, spec in pod_specs(values):
        for variable in spec["containers"][0]["env"]:
            assert not re.search(r"PASSWORD|TOKEN|SECRET", variable["name"]) or "secretKeyRef" in variable["valueFrom"]
    for config in configs(values):
        for key, value in leaves(tomllib.loads(config["data"]["kafleet.toml"])):
            assert not re.search(r"password$|token$", key, re.I) or re.fullmatch(r"\$\{\w+\}", value), key


# Sections that a role does not use, as in `unused` of its verb.
UNUSED = {
    "worker": {"redis", "outbox", "api", "schedules"},
    "tracker": {"outbox", "api", "apps", "types", "schedules", "callbacks", "email"},
    "api": {"outbox", "apps", "types", "schedules", "callbacks", "email"},
    "outbox": {"redis", "api", "apps", "types", "schedules", "callbacks", "email"},
    "topics": {"redis", "outbox", "api", "types", "schedules", "callbacks", "email"},
    "doctor": {"api", "types", "schedules", "callbacks", "email"},
    "schedules": {"kafka", "redis", "outbox", "api", "apps", "types", "ops", "callbacks", "email"},
}


def used_config(config, component, types):
    used = {key: part for key, part in config.items() if key not in UNUSED[component]}
    if types:
        used["types"] = {name: kind for name, kind in used.get("types", {}).items() if name in types}
        used["apps"] = {name: app for name, app in used.get("apps", {}).items() if set(app.get("types", types)) & types}
    return used


@EVERY
def test_pods_have_the_variables_that_they_use(values):
    config = configuration(values)
    for name, labels, spec in pod_specs(values):
        container = spec["containers"][0]
        variables = [variable["name"] for variable in container["env"]]
        assert len(variables) == len(set(variables)), name
        args = container["args"]
        types = set(args[args.index("--types") + 1].split(",")) if "--types" in args else set()
        used = variables_in(used_config(config, labels["app.kubernetes.io/component"], types))
        assert variables_in(config) & set(variables) == used, name


@EVERY
def test_termination_grace_covers_the_drain_timeout(values):
    text = configuration(values).get("worker", {}).get("drain_timeout", "30s")
    drain = int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]
    for deployment in workers(values):
        assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= drain + 10


@EVERY
def test_each_worker_entry_has_a_deployment(values):
    given = yaml.safe_load(values.read_text()).get("workers", [{"name": "default"}])
    found = {deployment["metadata"]["labels"]["kafleet/worker"]: deployment for deployment in workers(values)}
    assert list(sorted(found)) == sorted(worker["name"] for worker in given)
    for worker in given:
        expected = ["worker", "--watch-config"]
        if worker.get("types"):
            expected += ["--types", ",".join(worker["types"])]
        if worker.get("slots"):
            expected += ["--slots", str(worker["slots"])]
        assert found[worker["name"]]["spec"]["template"]["spec"]["containers"][0]["args"] == expected


@EVERY
def test_roles_are_never_scaled_to_zero(values):
    scaled = {scaler["spec"]["scaleTargetRef"]["name"]: scaler["spec"] for scaler in of_kind(values, "ScaledObject", "HorizontalPodAutoscaler")}
    for deployment in of_kind(values, "Deployment"):
        name, spec = deployment["metadata"]["name"], deployment["spec"]
        if name in scaled:
            assert "replicas" not in spec, "the autoscaler owns the number"
            assert scaled[name].get("minReplicas", scaled[name].get("minReplicaCount")) >= 1
        else:
            assert spec["replicas"] >= 1
    assert all(worker["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0 for worker in workers(values))
    assert set(scaled) <= {deployment["metadata"]["name"] for deployment in of_kind(values, "Deployment")}


def test_keda_queries_the_backlog_of_each_type():
    scaler = one(named("keda"), "ScaledObject", "fleet-transcode")["spec"]
    queries = [trigger["metadata"] for trigger in scaler["triggers"]]
    assert [trigger["url"] for trigger in queries] == [
        "http://fleet-api.jobs.svc:8080/v1/types/transcode/backlog",
        "http://fleet-api.jobs.svc:8080/v1/types/thumbnail/backlog",
    ]
    assert {(trigger["valueLocation"], trigger["targetValue"], trigger["authMode"]) for trigger in queries} == {("backlog", "4", "bearer")}
    assert scaler["fallback"]["replicas"] == 3 and scaler["maxReplicaCount"] == 20
    login = one(named("keda"), "TriggerAuthentication", scaler["triggers"][0]["authenticationRef"]["name"])
    assert login["spec"]["secretTargetRef"] == [{"parameter": "token", "name": "fleet-secrets", "key": "keda-token"}]
    mail = one(named("keda"), "ScaledObject", "fleet-mail")["spec"]
    assert mail["triggers"][0]["metadata"]["targetValue"] == "5000" and mail["fallback"]["replicas"] == 2


def test_the_service_that_keda_and_the_ingress_name_is_there():
    service = one(named("keda"), "Service", "fleet-api")["spec"]
    assert service["ports"][0]["port"] == 8080
    ingress = one(named("hpa"), "Ingress", "demo-kafleet-api")["spec"]
    backend = ingress["rules"][0]["http"]["paths"][0]["backend"]["service"]
    service = one(named("hpa"), "Service", backend["name"])["spec"]
    assert backend["port"]["name"] in [port["name"] for port in service["ports"]]
    assert ingress["tls"] == [{"hosts": ["tasks.example.org"], "secretName": "tasks-tls"}]
    assert ingress["rules"][0]["http"]["paths"][0]["path"] == configuration(named("hpa"))["api"]["ui"]["base_path"]
    assert matches(service["selector"], one(named("hpa"), "Deployment", "demo-kafleet-api")["spec"]["template"]["metadata"]["labels"])


def test_hpa_scales_on_cpu():
    scaler = one(named("hpa"), "HorizontalPodAutoscaler", "demo-kafleet-digest")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 12)
    assert scaler["metrics"][0]["resource"] == {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}
    api = one(named("apps"), "HorizontalPodAutoscaler", "shop-api")["spec"]
    tracker = one(named("apps"), "HorizontalPodAutoscaler", "shop-tracker")["spec"]
    assert [(role["minReplicas"], role["maxReplicas"]) for role in (api, tracker)] == [(3, 9), (2, 5)]


def test_topics_are_applied_before_anything_else_and_bring_what_they_need():
    job = one(named("keda"), "Job", "fleet-topics")
    spec = job["spec"]["template"]["spec"]
    config = one(named("keda"), "ConfigMap", spec["volumes"][0]["configMap"]["name"])
    account = one(named("keda"), "ServiceAccount", spec["serviceAccountName"])
    # This configuration has two images: each applies the topics of its types.
    assert spec["containers"][0]["args"] == ["topics", "apply", "--types", "echo,mail"]
    for document in (job, config, account):
        assert document["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    weights = [int(document["metadata"]["annotations"]["helm.sh/hook-weight"]) for document in (job, config, account)]
    assert weights[0] > max(weights[1:])
    assert config["data"] == one(named("keda"), "ConfigMap", "fleet")["data"]


def test_each_image_applies_the_topics_of_its_types():
    jobs = {job["metadata"]["name"]: job["spec"]["template"]["spec"] for job in of_kind(named("apps"), "Job")}
    schedules = jobs.pop("shop-schedules")
    found = {name: (spec["containers"][0]["image"], spec["containers"][0]["args"]) for name, spec in jobs.items()}
    assert found == {
        "shop-topics": ("kafleet:0.1.0", ["topics", "apply", "--types", "echo"]),
        "shop-topics-2": ("registry.example/images:3", ["topics", "apply", "--types", "resize,crop"]),
        "shop-topics-3": ("registry.example/mails:9", ["topics", "apply", "--types", "mail"]),
    }
    assert jobs["shop-topics-2"]["securityContext"]["fsGroup"] == 2000, "the app starts as in its workers"
    (only,) = [job for job in of_kind(named("default"), "Job")]
    assert only["spec"]["template"]["spec"]["containers"][0]["args"] == ["topics", "apply"]
    assert schedules["containers"][0]["args"] == ["schedules", "apply", "--prune"]
    env = {variable["name"]: variable for variable in schedules["containers"][0]["env"]}
    assert env["KAFLEET_API"]["value"] == "http://shop-api:8080"
    assert env["KAFLEET_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "shop", "key": "api-token"}
    assert one(named("apps"), "Job", "shop-schedules")["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"


def test_variable_of_one_entry_reaches_its_pods_and_the_jobs_of_its_image(tmp_path):
    values = tmp_path / "values.yaml"
    given = yaml.safe_load(named("apps").read_text())
    for worker in given["workers"]:
        worker.pop("image", None)
    values.write_text(yaml.safe_dump(given))
    rendered = template(values)
    assert rendered.returncode == 0, rendered.stderr
    documents = [doc for doc in yaml.safe_load_all(rendered.stdout) if doc and doc["kind"] in ("Deployment", "Job")]
    env = {doc["metadata"]["name"]: doc["spec"]["template"]["spec"]["containers"][0]["env"] for doc in documents}
    having = {name for name, variables in env.items() if "STORE_KEY" in [variable["name"] for variable in variables]}
    assert having == {"shop-images", "shop-topics"}


@EVERY
def test_each_role_has_its_own_service_account(values):
    created = {account["metadata"]["name"]: account["metadata"] for account in of_kind(values, "ServiceAccount")}
    if not created:
        return
    for name, labels, spec in pod_specs(values):
        component = labels["app.kubernetes.io/component"]
        account = created[spec["serviceAccountName"]]
        # The test pod is no part of the release.
        assert component == "doctor" or account["labels"]["app.kubernetes.io/component"] == component, name
        assert account["labels"].get("kafleet/worker") == labels.get("kafleet/worker"), name


def test_accounts_have_common_annotations_and_their_own():
    annotations = one(named("apps"), "ServiceAccount", "shop-images")["metadata"]["annotations"]
    assert annotations == {"team": "shop", "eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/images"}
    assert one(named("apps"), "ServiceAccount", "shop-api")["metadata"]["annotations"] == {"team": "shop"}
    assert {spec["serviceAccountName"] for _, _, spec in pod_specs(named("hpa"))} == {"fleet"}


def test_certificates_for_redis_are_mounted_where_redis_is_used():
    for name, labels, spec in pod_specs(named("apps")):
        paths = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
        assert ("/etc/redis-tls" in paths) == (labels["app.kubernetes.io/component"] in ("tracker", "api", "doctor")), name


def test_topics_job_without_hook_is_named_after_the_configuration(tmp_path):
    def job(config):
        values = tmp_path / "values.yaml"
        values.write_text(yaml.safe_dump({"topics": {"hook": False}, "pod": {"annotations": {"x": config}}}))
        (found,) = [doc for doc in yaml.safe_load_all(template(values).stdout) if doc and doc["kind"] == "Job"]
        assert "annotations" not in found["metadata"] and found["spec"]["ttlSecondsAfterFinished"]
        return found["metadata"]["name"]

    assert job("a") != job("b")


def test_configuration_files_are_mounted_at_their_paths():
    for name, _, spec in pod_specs(named("keda")):
        volume = spec["volumes"][0]["configMap"]
        data = one(named("keda"), "ConfigMap", volume["name"])["data"]
        assert {item["path"]: data[item["key"]] for item in volume["items"]}["schemas/transcode.json"].strip() == '{"type": "object", "required": ["url"]}'
        assert {"name": "KAFLEET_CONFIG", "value": "/etc/kafleet/kafleet.toml"} in spec["containers"][0]["env"], name


def pod_templates(tmp_path, more):
    values = tmp_path / "values.yaml"
    config = '[api]\nlisten = "0.0.0.0:8080"\n[ops]\nlisten = "0.0.0.0:9464"\n'
    values.write_text(yaml.safe_dump({"config": config + more}))
    rendered = [doc for doc in yaml.safe_load_all(template(values).stdout) if doc]
    deployments = [doc["spec"]["template"] for doc in rendered if doc["kind"] == "Deployment"]
    assert len(deployments) == 3 and all("--watch-config" in pod["spec"]["containers"][0]["args"] for pod in deployments)
    configs = [doc["data"]["kafleet.toml"] for doc in rendered if doc["kind"] == "ConfigMap"]
    return deployments, configs


def test_configuration_that_needs_a_restart_replaces_the_pods(tmp_path):
    def hashes(timeout):
        deployments, _ = pod_templates(tmp_path, f'[worker]\ndrain_timeout = "{timeout}"\n')
        return {pod["metadata"]["annotations"]["kafleet/config"] for pod in deployments}

    assert not hashes("30s") & hashes("31s")


LIVE_SETTINGS = json.loads((ROOT / "helm/kafleet/files/live-settings.json").read_text())


@pytest.mark.parametrize("key", LIVE_SETTINGS)
def test_limit_that_running_roles_take_over_replaces_no_pods(tmp_path, key):
    head = '[types.echo]\nhandler = "echo"\n'
    before, old = pod_templates(tmp_path, f'{head}[log]\nfilter = "info"\n')
    after, new = pod_templates(tmp_path, f'{head}{key} = 7\n[log]\nfilter = "debug"\n')
    assert old != new and before == after


def test_key_that_no_role_takes_over_replaces_the_pods(tmp_path):
    head = '[types.echo]\nhandler = "echo"\n'
    assert pod_templates(tmp_path, head)[0] != pod_templates(tmp_path, f'{head}order = "key"\n')[0]


def test_redis_url_from_the_secret_reaches_tracker_and_api_only():
    for name, labels, spec in pod_specs(named("keda")):
        redis = [variable["valueFrom"]["secretKeyRef"] for variable in spec["containers"][0]["env"] if variable["name"] == "KAFLEET_REDIS"]
        uses_redis = labels["app.kubernetes.io/component"] in ("tracker", "api", "doctor")
        assert redis == ([{"name": "fleet-secrets", "key": "redis-url"}] if uses_redis else []), name


def test_postgres_url_reaches_relay_and_doctor_only():
    pods = [(labels["app.kubernetes.io/component"], spec) for _, labels, spec in pod_specs(named("outbox"))]
    assert "outbox" in [component for component, _ in pods]
    for component, spec in pods:
        variables = [variable["name"] for variable in spec["containers"][0]["env"]]
        assert ("KAFLEET_POSTGRES" in variables) == (component in ("outbox", "doctor")), component


def test_images_by_digest_and_by_worker_entry():
    digest = one(named("hpa"), "Deployment", "demo-kafleet-tracker")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert digest.startswith("registry.example/kafleet@sha256:")
    own = one(named("keda"), "Deployment", "fleet-transcode")["spec"]["template"]["spec"]
    assert own["containers"][0]["image"] == "registry.example/media:7"
    assert own["nodeSelector"] == {"disk": "fast"}
    assert one(named("keda"), "Deployment", "fleet-echo")["spec"]["template"]["spec"]["containers"][0]["image"] == "kafleet:0.1.0"


def test_service_monitors_cover_all_deployments():
    services = of_kind(named("keda"), "Service")
    monitored = set()
    for monitor in of_kind(named("keda"), "ServiceMonitor"):
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        wanted = monitor["spec"]["selector"]["matchLabels"]
        (service,) = [service for service in services if matches(wanted, service["metadata"]["labels"])]
        assert monitor["spec"]["endpoints"][0]["port"] in [port["name"] for port in service["spec"]["ports"]]
        monitored |= {name for name, labels, _ in pod_specs(named("keda")) if matches(service["spec"]["selector"], labels)}
    assert monitored == {deployment["metadata"]["name"] for deployment in of_kind(named("keda"), "Deployment")}


def test_network_policies_open_exactly_the_ports():
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind(named("hpa"), "NetworkPolicy")}
    everything = policies.pop("demo-kafleet")
    assert everything["policyTypes"] == ["Ingress", "Egress"] and "ingress" not in everything
    assert {port["port"] for rule in everything["egress"] for port in rule["ports"]} == {53, 9092, 6379}
    for _, labels, spec in pod_specs(named("hpa")):
        assert matches(everything["podSelector"]["matchLabels"], labels)
        open_ports = {
            port["port"]
            for policy in policies.values()
            if matches(policy["podSelector"]["matchLabels"], labels)
            for port in policy["ingress"][0]["ports"]
        }
        assert open_ports == {port["name"] for port in spec["containers"][0].get("ports", [])}
    assert all(policy["ingress"][0]["from"] for policy in policies.values())


def test_minimal_installation():
    kinds = [document["kind"] for document in objects(named("minimal"))]
    assert sorted(kinds) == sorted(["ConfigMap", "Pod"] + 2 * ["Deployment", "PodDisruptionBudget", "ServiceAccount"])


@pytest.mark.parametrize("values", REFUSED, ids=lambda path: path.stem)
def test_invalid_values_are_refused(values):
    expected = values.read_text().splitlines()[0].removeprefix("# refused: ")
    done = template(values)
    assert done.returncode != 0, "rendering succeeded"
    assert re.search(expected, done.stderr, re.S), done.stderr


def workers(values):
    return [deployment for deployment in of_kind(values, "Deployment") if "kafleet/worker" in deployment["metadata"]["labels"]]


def configuration(values):
    (config,) = [config for config in configs(values) if "annotations" not in config["metadata"]]
    return tomllib.loads(config["data"]["kafleet.toml"])


def variables_in(part):
    return set(re.findall(r"\$\{(\w+)\}", json.dumps(part)))


def leaves(node, key=""):
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if children is None:
        return [(key, node)]
    return [leaf for name, child in children for leaf in leaves(child, f"{key}.{name}")]

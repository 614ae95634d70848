"""The objects that the operator makes for a job: names, owners, what of a template stays."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from holdfast_master.process.settings import EPOCHS_PER_POD as MASTERS_OWN
from holdfast_operator.plan.actions import CreatePod
from holdfast_operator.plan.inputs import HOSTNAME, REQUIRED, avoided_by
from holdfast_operator.plan.pods import MASTER_SLOT, WORKER, PodSlot
from holdfast_operator.pods import memory
from holdfast_operator.pods.gang import UPSTREAM
from holdfast_operator.pods.master_defaults import MasterDefaults
from holdfast_operator.pods.names import Owner, services
from holdfast_operator.pods.pod import EPOCHS_PER_POD, PodSource, master_pod, worker_pod
from holdfast_operator.pods.revision import revision_name, templates_of, with_templates
from holdfast_operator.settings import MASTER_POD
from jobs.job_files import TEMPLATE, job, read

OWNER = Owner(name="gpt", namespace="team", uid="u-1")


def _source(**fields: Any) -> PodSource:
    found = read(job("gpt", **fields))
    return PodSource(owner=OWNER, spec=found.spec, body=found.body, image="holdfast:1")


def _action(slot: PodSlot, **more: Any) -> CreatePod:
    return CreatePod(
        slot=slot, incarnation=2, name=slot.pod_name("gpt", 2), reason="a test", **more
    )


def _worker(**fields: Any) -> dict[str, Any]:
    return worker_pod(_source(**fields), _action(PodSlot(WORKER, 3)))


def _variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}


def test_a_worker_belongs_to_its_job_and_has_a_name_in_dns() -> None:
    """It goes when the job goes, and is found by its host name below the job's Service."""
    pod = _worker()
    metadata, spec = pod["metadata"], pod["spec"]
    assert metadata["name"] == "gpt-worker-3-2"
    assert metadata["labels"]["holdfast.dev/index"] == "3"
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("ElasticJob", "u-1", True)
    assert (spec["hostname"], spec["subdomain"]) == ("gpt-worker-3", "gpt")
    assert spec["restartPolicy"] == "Never"


def test_a_worker_that_ran_out_of_memory_gets_more() -> None:
    """Its training container alone; the template stays as it is."""
    small = {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}
    containers = [{"name": "worker", "image": "x", "resources": small}, {"name": "logs"}]
    source = _source(worker__template__spec__containers=containers)
    pod = worker_pod(source, _action(PodSlot(WORKER, 3), memory_limit=2 * 2**30))
    main, side = pod["spec"]["containers"]
    assert main["resources"] == {"limits": {"memory": "2048Mi"}, "requests": {"memory": "2048Mi"}}
    assert "resources" not in side
    again = worker_pod(source, _action(PodSlot(WORKER, 4)))
    assert again["spec"]["containers"][0]["resources"] == small


def test_a_worker_learns_who_it_is() -> None:
    """Holdfast's variables, torchrun's own, and only its own key pair."""
    pod = _worker()
    found = _variables(pod)
    assert found["HOLDFAST_MASTER"] == "gpt-master.team.svc:50051"
    assert found["HOLDFAST_NODE_RANK"] == found["PET_NODE_RANK"] == "3"
    (volume,) = pod["spec"]["volumes"]
    assert [one["key"] for one in volume["secret"]["items"]] == [
        "ca.pem",
        "worker-3.cert.pem",
        "worker-3.key.pem",
    ]
    uid = pod["spec"]["containers"][0]["env"][0]
    assert uid["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"


def test_workers_stay_together_where_a_topology_is_named() -> None:
    """By an affinity to one another, beside the template's own; the master is free."""
    required = {"key": "rack", "mode": "Required"}
    mine = {"podAffinity": {REQUIRED: [{"topologyKey": "mine"}]}}
    pod = _worker(scheduling__topology=required, worker__template__spec__affinity=mine)
    first, ours = pod["spec"]["affinity"]["podAffinity"][REQUIRED]
    assert (first["topologyKey"], ours["topologyKey"]) == ("mine", "rack")
    assert ours["labelSelector"]["matchLabels"]["holdfast.dev/job"] == "gpt"
    assert "HOLDFAST_TOPOLOGY" not in _variables(pod), "Kubernetes copies no such label to pods"
    (wish,) = _worker(scheduling__topology__key="rack")["spec"]["affinity"]["podAffinity"].values()
    assert wish[0]["podAffinityTerm"]["topologyKey"] == "rack"
    source = _source(scheduling__topology=required)
    master = master_pod(source, _action(MASTER_SLOT), 1)
    assert "podAffinity" not in master["spec"]["affinity"]


def test_a_zone_reaches_the_agent_by_its_pod_s_label() -> None:
    """It orders the ranks; what the template says comes first."""
    zone = "topology.kubernetes.io/zone"
    found = _variables(_worker(scheduling__topology__key=zone))
    assert found["HOLDFAST_TOPOLOGY"] == f"{zone}=$(NODE_TOPOLOGY)"
    env = [{"name": "HOLDFAST_TOPOLOGY", "value": "rack=1"}]
    containers = [{"name": "worker", "image": "x", "env": env}]
    pod = _worker(scheduling__topology__key=zone, worker__template__spec={"containers": containers})
    assert _variables(pod)["HOLDFAST_TOPOLOGY"] == "rack=1"
    assert "NODE_TOPOLOGY" not in _variables(pod)


def test_only_workers_are_in_the_gang() -> None:
    """A master that waited for its workers, or they for it, could wait for ever."""
    role = {"name": "eval", "replicas": 1, "template": TEMPLATE}
    additions = UPSTREAM.additions("gpt-worker")
    source = dataclasses.replace(_source(extraRoles=[role]), gang=additions)
    pod = worker_pod(source, _action(PodSlot(WORKER, 3)))
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": "gpt-worker"}
    assert "schedulingGroup" not in worker_pod(source, _action(PodSlot("eval", 0)))["spec"]
    assert "schedulingGroup" not in master_pod(source, _action(MASTER_SLOT), 1)["spec"]


def test_a_template_cannot_set_what_holdfast_sets() -> None:
    """Its own variables stay, after ours; its values for ours are dropped."""
    env = [{"name": "LR", "value": "1"}, {"name": "PET_NNODES", "value": "9"}]
    containers = [{"name": "worker", "image": "x", "env": env}]
    pod = _worker(worker__template__spec={"containers": containers})
    names = [one["name"] for one in pod["spec"]["containers"][0]["env"]]
    assert names[-1] == "LR"
    assert names.count("PET_NNODES") == 1


MAIN = {"name": "worker", "image": "x"}
RULE = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [137]}}]


def _kept(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A worker's pod in a cluster that can start containers again."""
    given = {"containers": [{**MAIN, **(container or {})}], **spec}
    source = dataclasses.replace(_source(worker__template__spec=given), starts_again=True)
    return worker_pod(source, _action(PodSlot(WORKER, 3)))


def _volume(pod: dict[str, Any]) -> Any:
    found = [one for one in pod["spec"]["volumes"] if one["name"] == "holdfast-arena"]
    assert len(found) <= 1
    return found[0].get("emptyDir") if found else None


def test_a_worker_that_is_killed_is_started_again_beside_its_memory() -> None:
    """Only after SIGKILL; the volume is as large as the container's own limit."""
    pod = _kept({"resources": {"limits": {"memory": "64Gi"}}})
    (main,) = pod["spec"]["containers"]
    assert (pod["spec"]["restartPolicy"], main["restartPolicy"]) == ("Never", "Never")
    assert main["restartPolicyRules"] == RULE
    assert _volume(pod) == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert {"name": "holdfast-arena", "mountPath": memory.ARENA_DIR} in main["volumeMounts"]
    assert _variables(pod)["HOLDFAST_ARENA_DIR"] == memory.ARENA_DIR
    assert _volume(_kept()) == {"medium": "Memory"}


def test_a_cluster_that_cannot_start_containers_again_gets_no_volume() -> None:
    """Before Kubernetes 1.35 such a pod would be refused, or the memory of no use."""
    pod = _worker()
    assert _volume(pod) is None
    assert "restartPolicyRules" not in pod["spec"]["containers"][0]
    assert "HOLDFAST_ARENA_DIR" not in _variables(pod)


def test_a_template_may_bring_its_own_memory_or_want_none() -> None:
    """A volume of our name, a mount at our place, a directory of its own, or an empty name."""
    mine = {"name": "holdfast-arena", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    pod = _kept(volumes=[mine])
    assert _volume(pod) == mine["emptyDir"]
    assert len(pod["spec"]["containers"][0]["volumeMounts"]) == 2

    mount = {"name": "fast", "mountPath": f"{memory.ARENA_DIR}/"}
    pod = _kept({"volumeMounts": [mount]}, volumes=[{"name": "fast", "emptyDir": {}}])
    assert _volume(pod) is None
    assert _variables(pod)["HOLDFAST_ARENA_DIR"] == memory.ARENA_DIR

    pod = _kept({"env": [{"name": "HOLDFAST_ARENA_DIR", "value": "/fast"}]})
    assert (_volume(pod), _variables(pod)["HOLDFAST_ARENA_DIR"]) == (None, "/fast")
    assert pod["spec"]["containers"][0]["restartPolicyRules"] == RULE

    pod = _kept({"env": [{"name": "HOLDFAST_ARENA_DIR", "value": ""}]})
    assert _volume(pod) is None
    assert "restartPolicyRules" not in pod["spec"]["containers"][0]


def test_a_volume_of_our_name_that_is_no_memory_is_refused() -> None:
    """It would outlive the pod, or be on a disk; the text names it and the remedy."""
    claim = {"name": "holdfast-arena", "persistentVolumeClaim": {"claimName": "c"}}
    said = memory.fault({"spec": {"containers": [MAIN], "volumes": [{"name": "a"}, claim]}})
    assert said.startswith("spec.volumes[1]: holdfast-arena is the name of")
    assert "medium: Memory, or give it another name" in said
    volume = {"name": "holdfast-arena", "emptyDir": {"medium": "Memory"}}
    assert memory.fault({"spec": {"containers": [MAIN], "volumes": [volume]}}) == ""
    assert memory.fault({"spec": {"containers": [MAIN], "volumes": None}}) == ""


def test_no_token_is_mounted_unless_the_template_asks() -> None:
    """Training code gets no way to the API server by accident."""
    assert _worker()["spec"]["automountServiceAccountToken"] is False
    containers = [{"name": "worker", "image": "x"}]
    wish = {"containers": containers, "automountServiceAccountToken": True}
    assert _worker(worker__template__spec=wish)["spec"]["automountServiceAccountToken"] is True


def test_labels_of_the_template_stay_and_ours_win() -> None:
    """A template may label its pods; what the operator finds them by is its own."""
    labels = {"team": "a", "holdfast.dev/job": "other"}
    pod = _worker(worker__template__metadata={"labels": labels})
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["labels"]["holdfast.dev/job"] == "gpt"


def test_nodes_to_avoid_are_added_to_every_alternative() -> None:
    """The template's own node affinity still holds."""
    term = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    required = {"nodeSelectorTerms": [term]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    spec = {"containers": [{"name": "worker", "image": "x"}], "affinity": affinity}
    source = _source(worker__template__spec=spec)
    pod = worker_pod(source, _action(PodSlot(WORKER, 0), avoid_nodes=("n7",)))
    node = pod["spec"]["affinity"]["nodeAffinity"]
    (found,) = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [one["key"] for one in found["matchExpressions"]] == ["gpu", "kubernetes.io/hostname"]
    assert term == {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}


def test_the_nodes_that_a_pod_avoids_can_be_read_from_it() -> None:
    """Those of every alternative: the template may have others in some of them."""
    assert avoided_by(_worker()["spec"]) == ()
    terms = [{"matchExpressions": [{"key": HOSTNAME, "operator": "NotIn", "values": ["x"]}]}, {}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    wish = {**TEMPLATE["spec"], "affinity": affinity}
    source = _source(worker__template__spec=wish)
    action = _action(PodSlot(WORKER, 0), avoid_nodes=("b", "a"))
    assert avoided_by(worker_pod(source, action)["spec"]) == ("a", "b")


def _evictions(pod: dict[str, Any]) -> dict[str, Any]:
    return {one.get("key"): one.get("tolerationSeconds") for one in pod["spec"]["tolerations"]}


def test_a_worker_does_not_stay_on_a_lost_node_for_kubernetes_minutes() -> None:
    """For the operator's time; what the template says of such a node comes first."""
    names = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    source = dataclasses.replace(_source(), lost_node_s=7)
    action = _action(PodSlot(WORKER, 0))
    assert _evictions(worker_pod(source, action)) == dict.fromkeys(names, 7)
    own = {"key": names[1], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 900}
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    found = _worker(worker__template__spec={**TEMPLATE["spec"], "tolerations": [gpu, own]})
    assert _evictions(found) == {"nvidia.com/gpu": None, names[1]: 900, names[0]: 300}
    every = {"operator": "Exists"}
    found = _worker(worker__template__spec={**TEMPLATE["spec"], "tolerations": [every]})
    assert found["spec"]["tolerations"] == [every]
    assert "tolerations" not in master_pod(source, _action(MASTER_SLOT), 1)["spec"]


_WISHES = """{
    "imagePullSecrets": [{"name": "registry"}], "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system"}], "annotations": {"a": "1", "b": "1"}, "labels": {},
    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}"""


def test_a_master_has_what_the_administrator_wants_of_masters() -> None:
    """Where its job does not say otherwise: each field of the pod, the container's resources."""
    wishes = MasterDefaults(_WISHES)
    pod = master_pod(
        dataclasses.replace(_source(), master_defaults=wishes), _action(MASTER_SLOT), 1
    )
    spec = pod["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert (spec["nodeSelector"], spec["tolerations"]) == ({"pool": "system"}, [{"key": "system"}])
    assert spec["containers"][0]["resources"] == {"limits": {"cpu": "1", "memory": "1Gi"}}
    assert pod["metadata"]["annotations"] == {"a": "1", "b": "1"}
    small = {"requests": {"cpu": "10m"}}
    own = {
        "containers": [{"name": "m", "image": "x", "resources": small}],
        "nodeSelector": {"z": "1"},
    }
    template = {"metadata": {"annotations": {"b": "2"}}, "spec": own}
    source = dataclasses.replace(_source(master__template=template), master_defaults=wishes)
    pod = master_pod(source, _action(MASTER_SLOT), 1)
    assert pod["spec"]["containers"][0]["resources"] == small
    assert (pod["spec"]["nodeSelector"], pod["spec"]["tolerations"]) == (
        {"z": "1"},
        [{"key": "system"}],
    )
    assert pod["metadata"]["annotations"] == {"a": "1", "b": "2"}


def test_a_master_of_the_operators_own_has_limits_and_a_quota_can_take_it() -> None:
    """By default, and where only the main container of a job's template lacks them."""
    for fields in ({}, {"master__template": {"spec": {"containers": [{"name": "m"}]}}}):
        source = dataclasses.replace(_source(**fields), master_defaults=MASTER_POD)
        (main,) = master_pod(source, _action(MASTER_SLOT), 1)["spec"]["containers"]
        assert (
            set(main["resources"]["limits"])
            == set(main["resources"]["requests"])
            == {"cpu", "memory"}
        )


def test_only_workers_and_extra_roles_are_named_by_an_index() -> None:
    """A selector of a job and an index must not meet its master."""
    master = master_pod(_source(), _action(MASTER_SLOT), 1)["metadata"]["labels"]
    assert (master["holdfast.dev/role"], "holdfast.dev/index" in master) == ("master", False)


def test_nodes_to_shun_are_only_a_preference() -> None:
    """The template's own stay; where there is no other node, the pod is made there."""
    wish = {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    spec = {"containers": [{"name": "worker", "image": "x"}], "affinity": affinity}
    source = _source(worker__template__spec=spec)
    pod = worker_pod(source, _action(PodSlot(WORKER, 0), shun_nodes=("n7",)))
    node = pod["spec"]["affinity"]["nodeAffinity"]
    kept, ours = node.pop("preferredDuringSchedulingIgnoredDuringExecution")
    assert (kept, node) == (wish, {})
    assert ours["weight"] == 100
    (found,) = ours["preference"]["matchExpressions"]
    assert found == {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n7"]}


def test_a_master_prefers_a_node_without_its_workers() -> None:
    """Else a node takes both with it; a successor has to be elsewhere before all."""
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    pod = master_pod(_source(), _action(MASTER_SLOT), 1001)
    (wish,) = pod["spec"]["affinity"]["podAntiAffinity"][preferred]
    labels = {"holdfast.dev/job": "gpt", "holdfast.dev/role": "worker"}
    assert wish["podAffinityTerm"] == {
        "labelSelector": {"matchLabels": labels},
        "topologyKey": "kubernetes.io/hostname",
    }
    worker = worker_pod(_source(), _action(PodSlot(WORKER, 0)))
    assert labels.items() <= worker["metadata"]["labels"].items()
    successor = master_pod(_source(), _action(MASTER_SLOT, shun_nodes=("n7",)), 2001)
    assert list(successor["spec"]["affinity"]) == ["nodeAffinity"]


def test_a_pod_of_an_extra_role_has_no_part_in_the_world() -> None:
    """It learns whose it is, and gets no certificate."""
    source = _source(extraRoles=[{"name": "eval", "template": TEMPLATE}])
    pod = worker_pod(source, _action(PodSlot("eval", 0)))
    assert "volumes" not in pod["spec"]
    assert "HOLDFAST_NODE_RANK" not in _variables(pod)
    assert _variables(pod)["HOLDFAST_JOB"] == "gpt"


def test_a_master_is_started_again_in_its_pod_and_keeps_its_journal() -> None:
    """An emptyDir outlives its container; the pod runs with what the restricted profile allows."""
    pod = master_pod(_source(), _action(MASTER_SLOT), 3001)
    spec = pod["spec"]
    assert spec["restartPolicy"] == "Always"
    assert {"name": "holdfast-journal", "emptyDir": {}} in spec["volumes"]
    assert _variables(pod)["HOLDFAST_EPOCH"] == "3001"
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["automountServiceAccountToken"] is False


def test_a_journal_may_be_on_a_claim_or_absent() -> None:
    """The claim is the user's own; without a journal the starts of the container are counted."""
    mode = {"mode": "PersistentVolumeClaim", "claimName": "keep"}
    pod = master_pod(_source(master__journal=mode), _action(MASTER_SLOT), 1)
    claims = [one.get("persistentVolumeClaim") for one in pod["spec"]["volumes"]]
    assert {"claimName": "keep"} in claims
    pod = master_pod(_source(master__journal={"mode": "None"}), _action(MASTER_SLOT), 1)
    variables = _variables(pod)
    assert "HOLDFAST_JOURNAL_DIR" not in variables
    assert {"name": "holdfast-starts", "emptyDir": {}} in pod["spec"]["volumes"]
    mounts = {one["name"]: one["mountPath"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["holdfast-starts"] == variables["HOLDFAST_STARTS_DIR"]


def test_a_master_names_the_port_of_its_metrics() -> None:
    """A PodMonitor finds it by that name, whatever its number; a template may choose the number."""
    pod = master_pod(_source(), _action(MASTER_SLOT), 1)
    assert {"name": "metrics", "containerPort": 9464} in pod["spec"]["containers"][0]["ports"]
    assert _variables(pod)["HOLDFAST_METRICS_PORT"] == "9464"
    assert _variables(pod)["HOLDFAST_NAMESPACE"] == OWNER.namespace
    pod = master_pod(_source(master__port=9464), _action(MASTER_SLOT), 1)
    assert _variables(pod)["HOLDFAST_METRICS_PORT"] == "9465"
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 7000}]
    pod = master_pod(_source(master__template=template), _action(MASTER_SLOT), 1)
    assert [one["name"] for one in pod["spec"]["containers"][0]["ports"]] == ["metrics"]
    assert _variables(pod)["HOLDFAST_METRICS_PORT"] == "7000"


def test_operator_and_master_agree_on_the_epochs_of_a_pod() -> None:
    """They never import each other, so the number stands in both."""
    assert EPOCHS_PER_POD == MASTERS_OWN


def test_both_services_reach_pods_that_are_not_ready() -> None:
    """Rendezvous happens before readiness."""
    master, workers = services(OWNER, 50051)
    assert workers["spec"]["clusterIP"] == "None"
    assert all(one["spec"]["publishNotReadyAddresses"] for one in (master, workers))
    assert workers["metadata"]["name"] == "gpt"


def test_null_is_as_good_as_none_in_a_template() -> None:
    """As everywhere in Kubernetes: lists and groups that people leave empty."""
    template = copy.deepcopy(TEMPLATE)
    template["spec"] |= {"volumes": None, "affinity": None}
    template["spec"]["containers"][0] |= {"volumeMounts": None, "env": None}
    source = _source(worker__template=template)
    spec = worker_pod(source, _action(PodSlot(WORKER, 3), avoid_nodes=("bad",)))["spec"]
    assert [one["name"] for one in spec["volumes"]] == ["holdfast-tls"]
    assert [one["name"] for one in spec["containers"][0]["volumeMounts"]] == ["holdfast-tls"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["values"] == ["bad"]


def test_a_host_name_that_dns_does_not_take_is_left_out() -> None:
    """Of an extra role only; a worker's always fits."""
    name, role = "j" * 45, "r" * 15
    found = read(job(name, extraRoles=[{"name": role, "replicas": 20, "template": TEMPLATE}]))
    owner = Owner(name=name, namespace="team", uid="u-1")
    source = PodSource(owner=owner, spec=found.spec, body=found.body, image="holdfast:1")
    for index, has in ((9, True), (10, False)):
        slot = PodSlot(role, index)
        action = CreatePod(slot=slot, incarnation=0, name=slot.pod_name(name, 0), reason="")
        assert ("hostname" in worker_pod(source, action)["spec"]) is has
    last = PodSlot(WORKER, 9_999)
    action = CreatePod(slot=last, incarnation=0, name=last.pod_name(name, 0), reason="")
    assert len(worker_pod(source, action)["spec"]["hostname"]) <= 63


def test_the_processes_of_a_node_are_part_of_what_pods_are_made_from() -> None:
    """An edit applies with those of the templates: a world has one number."""
    before, after = (read(job(nprocPerNode=count)).spec for count in (1, 2))
    assert revision_name("gpt", templates_of(before)) != revision_name("gpt", templates_of(after))
    assert with_templates(after, templates_of(before)).nproc_per_node == 1

"""A real node: containerd, kubelet and kube-proxy in namespaces of their own, on this machine.

`files/node.sh` makes the namespaces and runs the lines of shell that it reads. It ends everything,
and takes the node's cgroups away, when this process closes the pipe or is killed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import psutil

from cluster.papers import PLANE_ADDRESS
from cluster.real.images import image_folder, tools_folder
from cluster.real.plane import FILES, MOST_NODES, RealPlane, node_address

_NODE_GROUP: Final = "holdfast-{pid}-{name}"
_END_SECONDS: Final = 20.0


class RealNode:
    """One node of a cluster, up from the start on until it is lost or stopped."""

    def __init__(self, plane: RealPlane, number: int) -> None:
        """Start it; `ready` waits until it takes pods."""
        assert 1 <= number <= MOST_NODES
        self.name = f"n{number}"
        self._plane, self._number = plane, number
        self.folder = plane.folder / self.name
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Boot: with empty disks the first time, later with what was on them."""
        if not self.folder.exists():
            self._make_disks()
        (self.folder / "ready").unlink(missing_ok=True)
        group = _NODE_GROUP.format(pid=os.getpid(), name=self.name)
        with (self.folder / "node.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["bash", FILES / "node.sh", self.name, self.folder, group],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._plane.until(f"the namespaces of {self.name}", self._is_up)
        self._link()
        self.start_daemon("containerd", "containerd", "--config=/etc/holdfast/containerd.toml")
        self._plane.until(f"containerd on {self.name}", (self._containerd_socket()).exists)
        kubeconfig = self._plane.write_kubeconfig(self.name)
        self.start_kubelet(kubeconfig)
        self.start_daemon(
            "kube-proxy",
            f"{tools_folder() / 'kube-proxy'}",
            "--config=/etc/holdfast/proxy.yaml",
            f"--hostname-override={self.name}",
        )

    def start_kubelet(self, kubeconfig: Path) -> None:
        """Start its kubelet."""
        self.start_daemon(
            "kubelet",
            f"{tools_folder() / 'kubelet'}",
            "--config=/etc/holdfast/kubelet.yaml",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={node_address(self._number)}",
            "--root-dir=/var/lib/kubelet",
        )

    def start_daemon(self, name: str, *words: str) -> None:
        """Start a program that ends with the node; its log is NAME.log in the node's folder."""
        log = shlex.quote(str(self.folder / f"{name}.log"))
        self._tell(f"{shlex.join(words)} </dev/null >>{log} 2>&1 &")

    def ready(self) -> None:
        """Wait until it is Ready, as the API server has it."""
        self._plane.until(f"{self.name} Ready", lambda: self.condition("Ready") == "True")

    def condition(self, kind: str) -> str:
        """Return the status of one of its conditions; empty where there is none."""
        answer = self._plane.api.get(f"/api/v1/nodes/{self.name}")
        stated: list[dict[str, Any]] = (
            answer.body.get("status", {}).get("conditions", []) if answer.ok else []
        )
        return next((one["status"] for one in stated if one["type"] == kind), "")

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command in the node; return what it printed."""
        enter = ("nsenter", "-t", f"{self.pid}", "-m", "-n", "-C", "-i", "-u", "-p", "-r", "-w")
        done = subprocess.run(
            [*enter, *words], capture_output=True, text=True, check=False, timeout=60
        )
        if check and done.returncode:
            raise AssertionError(f"{words} on {self.name}: {done.stderr}")
        return done.stdout

    def kill_container(self, container_id: str) -> None:
        """Kill a container's first process, as the kernel does when memory is short."""
        name = container_id.removeprefix("containerd://")
        self.run("ctr", "-n", "k8s.io", "task", "kill", "-s", "SIGKILL", name)

    def cut(self) -> None:
        """Let nothing pass to or from it any more, not even a word that it is gone."""
        self._plane.inside("ip", "link", "set", self._cable, "down")

    def lose(self) -> None:
        """Take its power: the network is silent, then every process is gone; its disks stay."""
        self.cut()
        self.stop()

    def stop(self) -> None:
        """End everything that runs in it, and take its cgroups away."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children():
                child.kill()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(_END_SECONDS)

    @property
    def pid(self) -> int:
        """Its first process, as this machine counts."""
        assert self._process is not None
        (unshare,) = psutil.Process(self._process.pid).children()
        (first,) = unshare.children()
        return int(first.pid)

    @property
    def _cable(self) -> str:
        return f"hf{self._number}"

    def last_words(self) -> str:
        """Return the ends of its logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(
            f"--- {one.name}\n{one.read_text(errors='replace')[-2000:]}" for one in logs
        )

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended:\n{self.last_words()}")
        return (self.folder / "ready").exists()

    def _containerd_socket(self) -> Path:
        return Path(f"/proc/{self.pid}/root/run/containerd/containerd.sock")

    def _make_disks(self) -> None:
        """Lay the image into it: hard links to layers, and containerd's own databases."""
        self.folder.mkdir()
        image = image_folder() / "containerd"
        subprocess.run(["cp", "-al", image, self.folder / "containerd"], check=True)
        for file in (self.folder / "containerd").rglob("*.db"):
            own = file.with_suffix(".own")
            shutil.copy2(file, own)
            own.rename(file)
        places = {
            "@PLANE@": str(self._plane.folder),
            "@NUMBER@": str(self._number),
            "@ADDRESS@": node_address(self._number),
            "@FILES@": str(min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1_000_000)),
        }
        (self.folder / "files").mkdir()
        for name in ("containerd.toml", "kubelet.yaml", "proxy.yaml", "cni.json"):
            text = (FILES / name).read_text()
            for mark, value in places.items():
                text = text.replace(mark, value)
            (self.folder / "files" / name).write_text(text)
        (self.folder / "files" / "resolv.conf").write_text(f"nameserver {PLANE_ADDRESS}\n")

    def _link(self) -> None:
        inside = self.pid
        with contextlib.suppress(subprocess.CalledProcessError):  # of the time before its loss
            self._plane.inside("ip", "link", "del", self._cable)
        peer = ("type", "veth", "peer", "name", "eth0", "netns", f"{inside}")
        self._plane.inside("ip", "link", "add", self._cable, *peer)
        self._plane.inside("ip", "link", "set", self._cable, "master", "hf0", "up")
        others = (one for one in range(1, MOST_NODES + 1) if one != self._number)
        self._tell(
            "ip link set lo up",
            f"ip addr add {node_address(self._number)}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {PLANE_ADDRESS}",
            *(f"ip route add 10.244.{one}.0/24 via {node_address(one)}" for one in others),
            "echo 1 >/proc/sys/net/ipv4/ip_forward",
            "echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables",
        )

    def _tell(self, *lines: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines))
        self._process.stdin.flush()


class RealNodes:
    """The nodes of a cluster."""

    def __init__(self, plane: RealPlane, count: int) -> None:
        """Start them, and wait until they take pods."""
        self.all: list[RealNode] = []
        try:
            for number in range(1, count + 1):
                self.all.append(RealNode(plane, number))
            for node in self.all:
                node.ready()
        except BaseException as error:
            error.add_note(self.last_words())
            self.stop()
            raise

    def __getitem__(self, name: str) -> RealNode:
        """Return the node of a name."""
        return next(node for node in self.all if node.name == name)

    def kill_container(self, pod: dict[str, Any], name: str = "worker") -> None:
        """Kill the first process of a pod's container."""
        states = pod["status"]["containerStatuses"]
        identity = next(one["containerID"] for one in states if one["name"] == name)
        self[pod["spec"]["nodeName"]].kill_container(identity)

    def last_words(self) -> str:
        """Return the ends of all their logs."""
        return "\n".join(f"=== {node.name}\n{node.last_words()}" for node in self.all)

    def stop(self) -> None:
        """End everything that runs in them."""
        for node in self.all:
            node.stop()

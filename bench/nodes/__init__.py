"""Measurements on real nodes: kubelet, containerd and the image in namespaces of this machine."""

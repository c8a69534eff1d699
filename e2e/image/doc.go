// Package image makes the container images of test clusters without a container engine:
// Carve's own two, that of the tests' workloads, and those that the cluster itself needs.
//
// An image is a tar of layers, as `docker save` writes it, that docker, podman and
// containerd load. A layer is made from Debian packages, unpacked and reduced to what
// runs, or from static programs. Layers are canonical: entries sorted, times and owners'
// names taken out, so that the same inputs give the same digests, and they are not
// compressed, because nodes that are emulated unpack them slowly enough.
//
// Carve's image has the packages that deploy/image/packages.txt lists, as has the one that
// users build with deploy/image/Dockerfile. carve-scheduler's has one program and its licences.
package image

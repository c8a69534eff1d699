// Package driver is the CSI node plugin: the Identity and Node services that a
// kubelet calls, and the registration by which it finds them.
//
// It owns what happens between a volume that lvmd carved and formatted and the
// paths at which Pods see it: check, mount, bind, unmount, grow the file
// system, report how full it is. Volumes that are encrypted with a key from a
// Secret it makes, opens and closes. It never runs an LVM command, formats nothing
// that may hold data, never talks to the Kubernetes API and keeps no
// state: the mount table is the truth about what is staged and published, lvmd
// about which volumes exist, a header about whether an encrypted one is made.
//
// Vocabulary: a volume is staged when its file system is mounted at the
// staging path, once per node; it is published when that mount, or for raw
// block the device node, is bound to a target path, once per Pod. Both paths
// lie below the kubelet's directory. An encrypted volume is open while it has a
// mapping.
//
// Invariants: every call may be repeated and may follow a crash at any point;
// no path ever has two layers; two calls that change one volume never run at
// once, the second is answered with Aborted; calls for different volumes never
// wait for each other. A clean volume is staged and published without forking.
// No device is used before the kernel said that it is the wanted volume.
// Unpublish and Unstage need neither lvmd nor a living device.
//
// Read it from node.go, which assembles the service; stage.go and publish.go are the main path.
// devices.go finds devices and what shows them, luks.go opens encrypted volumes, sweep.go
// unmounts what a previous run left, monitor.go watches the health of volumes. Below are
// package inline (volumes that Pods define), kubelet (its paths and records), mount (the
// kernel's mounts), lvmdclient and csierror. cmd/node is the caller; package drivertest has
// fakes of what is below.
package driver

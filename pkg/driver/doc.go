// Package driver is the CSI node plugin: the Identity and Node services that a
// kubelet calls, and the registration by which it finds them.
//
// Between a volume that lvmd has created and formatted and the paths at which
// Pods see it, the package checks, mounts, binds, unmounts and grows the file
// system and reports its usage. It creates, opens and closes volumes encrypted
// with a key from a Secret. It runs no LVM command, never formats a device that
// may hold data, does not talk to the Kubernetes API and keeps no state. The
// mount table shows which volumes are staged and published, lvmd which exist,
// and the LUKS header whether an encrypted one is complete.
//
// Vocabulary: a volume is staged when its file system is mounted at the staging
// path, once per node. It is published when that mount, or the device node of a
// raw block volume, is bound to a target path, once per Pod. Both paths lie
// below the kubelet's directory. An encrypted volume is open while it has a
// mapping.
//
// Invariants: every call may be repeated, and may follow a crash at any point.
// No path ever has two layers. Of two concurrent calls that change one volume,
// the second gets Aborted; calls for different volumes never wait for each
// other. Staging and publishing a clean volume forks no process. No device is
// used before the kernel confirms that it is the volume's. Unpublish and
// Unstage need neither lvmd nor a working device.
//
// Start with node.go, which assembles the service; stage.go and publish.go are
// the main path. devices.go finds devices and their mounts, luks.go opens
// encrypted volumes, sweep.go unmounts leftovers of a previous run, monitor.go
// watches the health of volumes. The subpackages are inline (volumes defined in
// Pods), kubelet (its paths and records), mount (the kernel's mounts),
// lvmdclient, csierror and nofollow; drivertest has fakes of these
// dependencies. cmd/node is the caller.
package driver

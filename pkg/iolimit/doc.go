// Package iolimit limits how fast Pods read and write their volumes.
//
// Limits are stored with the volume, as a tag in LVM's metadata, and lvmd
// reports them. If the component is installed on a node, the node plugin writes
// a Request to a file: the volumes, their devices and limits, and the Pods that
// use them. The Applier, a program without other rights, reads it, writes the
// limits to the Pods' cgroups (package cgroup), and reports failures in a file
// of its own, a Report. Both files are replaced atomically and last as long as
// the node plugin's Pod, so each program can restart by itself.
//
// The kernel limits I/O per cgroup and block device. The device is the first
// that the Pod's requests reach: the mapping of an encrypted volume, else the
// logical volume. Devices below get requests from kernel threads in the root
// cgroup, which has no limits.
package iolimit

// Package iolimit limits how fast Pods read and write their volumes.
//
// Limits are what is asked for. They are kept with the volume, as a tag in LVM's metadata;
// lvmd reports them. On a node whose administrator installed the component, the node plugin
// writes a Request to a file: which volumes there are, on which devices, with which limits,
// and which Pods have them. A program with no other rights, the Applier, reads it, writes the
// limits to the Pods' cgroups (package cgroup), and reports by a file of its own, a Report,
// what could not be applied. Both files are written whole, and last as long as the node
// plugin's Pod: each program can restart by itself.
//
// The kernel keeps limits per cgroup and block device. The device is the one that the Pod's
// requests reach first: the mapping of an encrypted volume, else the logical volume. What lies
// below gets requests from the kernel's own threads, in the root's cgroup, which has no limits.
package iolimit

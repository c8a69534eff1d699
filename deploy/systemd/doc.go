// Package systemd holds lvmd's unit for machines without Kubernetes, and its tests:
// they install the unit as docs/get-started/standalone.md says, in a machine that systemd has
// booted.
package systemd

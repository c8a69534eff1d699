// Package audit compares, once a minute, what the nodes hold with what the API knows.
//
// It finds orphans (volumes that no object names), missing volumes (PersistentVolumes whose
// node does not have the volume), unhealthy volumes and encrypted volumes that lost their
// data, and notifies their users by Events and conditions. It removes orphans if that was
// asked for, and deletes claims, and Pods that wait for them, whose class gives them up.
// It makes no volume.
//
// NodeConditions keeps conditions of device classes on Nodes, whenever a node reports.
//
// Caller: the controller, while it leads.
package audit

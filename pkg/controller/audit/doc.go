// Package audit compares the nodes' volumes with the API once a minute, while the controller
// leads.
//
// It reports orphans (volumes that no object names), missing volumes (PersistentVolumes whose
// node lacks the volume), unhealthy volumes and encrypted volumes that lost their data by
// Events and conditions. On request it removes orphans, and deletes claims whose class
// abandons lost volumes, with the Pods that wait for them. It never creates a volume.
//
// NodeConditions keeps conditions of device classes on Nodes, at each report of a node.
package audit

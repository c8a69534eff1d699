// Package controller assembles Carve's controller: it turns claims into volumes on nodes, and
// publishes how much free space is left.
//
// It owns no decision itself. Those are in the packages below, which do not know each other:
//
//	spec       what StorageClasses and claims ask for
//	cluster    the view of the cluster: informers, node availability, Events
//	provision  claims become volumes and PersistentVolumes, and are bound
//	capacity   CSIStorageCapacity objects, and the start-up taint
//	reclaim    released volumes are deleted, claims on lost nodes abandoned
//	pin        volumes without nodeAffinity get one where their Pods need it
//	audit      orphans, missing and unhealthy volumes
//
// Here are the options, the leader election, the uplink's server (trust has its keys), and the
// upstream libraries that grow volumes and take snapshots. The controller keeps no state: it derives all of it from the API server and the
// nodes' reports, and may lose it at any instant. Only the leader writes.
//
// The states of a claim are drawn in docs/explanation/claims.md. Caller: cmd/controller.
package controller

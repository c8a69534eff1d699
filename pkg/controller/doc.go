// Package controller assembles Carve's controller: it turns claims into volumes on nodes, and
// publishes the free space.
//
// The decisions are in these packages, which do not know each other:
//
//	spec       what StorageClasses and claims ask for
//	cluster    the view of the cluster: informers, node availability, Events
//	provision  claims become volumes and PersistentVolumes, and are bound
//	capacity   CSIStorageCapacity objects, and the start-up taint
//	reclaim    released volumes are deleted, claims on lost nodes abandoned
//	pin        volumes without nodeAffinity get one where their Pods need it
//	audit      orphans, missing and unhealthy volumes
//
// This package has the options, the leader election, the uplink's server (trust has its keys),
// and the upstream libraries that grow volumes and take snapshots. The controller may lose its
// state at any instant: it derives all of it from the API server and the nodes' reports. Only
// the leader writes.
package controller

package spec

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// The kinds of data sources.
const (
	KindClaim    = "PersistentVolumeClaim"
	KindSnapshot = "VolumeSnapshot"
	// SnapshotGroup is the API group of KindSnapshot.
	SnapshotGroup = "snapshot.storage.k8s.io"
)

// DataSource is the object, in the claim's namespace, that a volume is created from.
type DataSource struct{ Kind, Name string }

// SourceOf returns a claim's data source, nil for none. It returns false for other kinds, which
// belong to volume populators. Errors are *InvalidError.
func SourceOf(claim *v1.PersistentVolumeClaim) (source *DataSource, ours bool, err error) {
	var group, namespace *string
	switch ref, old := claim.Spec.DataSourceRef, claim.Spec.DataSource; {
	case ref != nil:
		source, group, namespace = &DataSource{ref.Kind, ref.Name}, ref.APIGroup, ref.Namespace
	case old != nil:
		source, group = &DataSource{old.Kind, old.Name}, old.APIGroup
	default:
		return nil, true, nil
	}
	core := group == nil || *group == ""
	claimed, snapshot := core && source.Kind == KindClaim, !core && *group == SnapshotGroup && source.Kind == KindSnapshot
	if !claimed && !snapshot {
		return nil, false, nil
	}
	if namespace != nil && *namespace != "" && *namespace != claim.Namespace {
		return nil, true, &InvalidError{Field: "spec.dataSourceRef.namespace", Given: fmt.Sprintf("%q", *namespace), Allowed: "the claim's own namespace"}
	}
	return source, true, nil
}

// ForPopulator reports whether a volume populator fills the claim. The populator creates its own
// claim for us; this one is not ours to provision.
func ForPopulator(claim *v1.PersistentVolumeClaim) bool {
	_, ours, _ := SourceOf(claim)
	return !ours
}

// Origin is a data source that was found.
type Origin struct {
	// What describes it in messages.
	What string
	// Node has the source, so only it can have the claim's volume.
	Node   string
	Source *lvmdv1.VolumeSource
	// Claim is the source's claim, which must be protected in the meantime; nil for a snapshot.
	Claim *v1.PersistentVolumeClaim
}

// SnapshotHandle returns a snapshot's CSI id.
func SnapshotHandle(node, id string) string { return node + "/" + id }

// ParseSnapshotHandle parses a snapshot's CSI id. It returns false for anything else.
func ParseSnapshotHandle(handle string) (node, id string, ok bool) {
	node, id, ok = strings.Cut(handle, "/")
	return node, id, ok && node != "" && id != "" && !strings.Contains(id, "/")
}

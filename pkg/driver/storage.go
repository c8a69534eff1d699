package driver

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/carve-csi/carve/api/conditions"
)

var unreachable = conditions.Unusable(conditions.Class)

// NodeGetStorageHealth reports lvmd's conditions of the device classes, each
// reason once with its classes. If lvmd does not answer it returns an error,
// which implies nothing about the storage.
func (n *Node) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	classes, err := n.volumes.Classes(ctx)
	if err != nil {
		return nil, err
	}
	answer := &csi.NodeGetStorageHealthResponse{}
	at := map[string]*csi.NodeGetStorageHealthResponse_StorageBackendHealth{}
	for _, class := range classes {
		for _, c := range class.GetConditions() {
			message := fmt.Sprintf("device class %s: %s", class.GetName(), c.GetMessage())
			if entry, known := at[c.GetType()]; known {
				entry.Message += "; " + message
				continue
			}
			entry := &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
				Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: c.GetType(), Message: message,
			}
			if slices.Contains(unreachable, c.GetType()) {
				entry.Status = csi.StorageHealthErrorType_STORAGE_UNREACHABLE
			}
			at[c.GetType()] = entry
			answer.BackendHealth = append(answer.BackendHealth, entry)
		}
	}
	return answer, nil
}

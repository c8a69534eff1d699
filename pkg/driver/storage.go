package driver

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// unreachable are lvmd's condition types of device classes whose volumes cannot
// be used at all; with the others they can.
var unreachable = []string{"VolumeGroupMissing", "NotResponding", "PoolMissing", "PoolInactive", "PoolFailed"}

// NodeGetStorageHealth tells what lvmd knows about the node's device classes,
// each reason once with the classes it is true of. An empty list is good news;
// an lvmd that does not answer is an error, not a verdict on the storage.
func (n *Node) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	classes, err := n.classes(ctx)
	if err != nil {
		return nil, err
	}
	answer := &csi.NodeGetStorageHealthResponse{}
	at := map[string]*csi.NodeGetStorageHealthResponse_StorageBackendHealth{}
	for _, class := range classes {
		for _, c := range class.GetConditions() {
			message := fmt.Sprintf("device class %s: %s", class.GetName(), c.GetMessage())
			if entry, told := at[c.GetType()]; told {
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

// classes returns lvmd's device classes by name.
func (n *Node) classes(ctx context.Context) ([]*lvmdv1.DeviceClass, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	answer, err := n.options.LVMD.ListClasses(ctx, &lvmdv1.ListClassesRequest{}, grpc.WaitForReady(true))
	switch code := status.Code(err); {
	case err == nil:
	case code == codes.DeadlineExceeded:
		return nil, &failure{codes.Unavailable, fmt.Errorf("lvmd did not answer within %v: %w", lookupTimeout, err)}
	default:
		return nil, &failure{code, fmt.Errorf("lvmd: %s", status.Convert(err).Message())}
	}
	classes := answer.GetClasses()
	slices.SortFunc(classes, func(a, b *lvmdv1.DeviceClass) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return classes, nil
}

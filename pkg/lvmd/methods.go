package lvmd

import (
	"path"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// Transport names a way to call the service, as errors show it.
type Transport string

const (
	// Socket is for root on the node: the node plugin and lvmd's subcommands.
	Socket Transport = "lvmd's unix socket"
	// Uplink is for the controller.
	Uplink Transport = "the uplink"
	both   Transport = "either"
)

// methods maps full method names to transports. The uplink serves the methods that the
// controller of this or the previous release calls. Only root on the node may adopt volumes or
// record their contents. Methods that need the controller's view of the cluster are on the
// uplink only.
var methods = map[string]Transport{
	lvmdv1.LVMD_CreateVolume_FullMethodName:    both,
	lvmdv1.LVMD_DeleteVolume_FullMethodName:    both,
	lvmdv1.LVMD_GetVolume_FullMethodName:       both,
	lvmdv1.LVMD_ListVolumes_FullMethodName:     Socket,
	lvmdv1.LVMD_ListClasses_FullMethodName:     both,
	lvmdv1.LVMD_ExpandVolume_FullMethodName:    both,
	lvmdv1.LVMD_ModifyVolume_FullMethodName:    Uplink,
	lvmdv1.LVMD_CreateSnapshot_FullMethodName:  both,
	lvmdv1.LVMD_DeleteSnapshot_FullMethodName:  both,
	lvmdv1.LVMD_GetSnapshot_FullMethodName:     both,
	lvmdv1.LVMD_ListSnapshots_FullMethodName:   both,
	lvmdv1.LVMD_NoteHealth_FullMethodName:      Socket,
	lvmdv1.LVMD_NoteEncrypted_FullMethodName:   Socket,
	lvmdv1.LVMD_KeepVolume_FullMethodName:      both,
	lvmdv1.LVMD_AdoptVolume_FullMethodName:     Socket,
	lvmdv1.LVMD_ConfirmAdoption_FullMethodName: Socket,
	lvmdv1.LVMD_RevertAdoption_FullMethodName:  Socket,
	lvmdv1.LVMD_Watch_FullMethodName:           both,
	healthpb.Health_Check_FullMethodName:       Socket,
	healthpb.Health_List_FullMethodName:        Socket,
	healthpb.Health_Watch_FullMethodName:       Socket,
}

func checkMethod(t Transport, method string) error {
	if served := methods[method]; served != both && served != t {
		return apierror.WrongTransport("%s does not serve %s: call it over %s", t, path.Base(method), served)
	}
	return nil
}

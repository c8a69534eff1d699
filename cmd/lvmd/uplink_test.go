package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/uplink/uplinktest"
)

func denied(t *testing.T, conn grpc.ClientConnInterface, method, instead string) bool {
	t.Helper()
	var err error
	switch method {
	case lvmdv1.LVMD_Watch_FullMethodName, healthpb.Health_Watch_FullMethodName:
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream := must.Get(conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method))(t)
		must.Succeed(t, stream.SendMsg(&emptypb.Empty{}))
		must.Succeed(t, stream.CloseSend())
		err = stream.RecvMsg(&emptypb.Empty{})
	default:
		err = conn.Invoke(t.Context(), method, &emptypb.Empty{}, &emptypb.Empty{})
	}
	is := status.Code(err) == codes.PermissionDenied
	if is && !strings.Contains(err.Error(), "call it over "+instead) {
		t.Errorf("%s is denied with %v, want %s named", method, err, instead)
	}
	return is
}

func TestEachTransportServesItsCallers(t *testing.T) {
	onlySocket := []string{"ListVolumes", "NoteHealth", "NoteEncrypted", "AdoptVolume", "ConfirmAdoption", "RevertAdoption", "Check", "List", "Watch"}
	onlyUplink := []string{"ModifyVolume"}

	sessions := make(chan *uplink.Session, 1)
	network := must.Get(uplinktest.NewNetwork(t.TempDir(), func(s *uplink.Session) { sessions <- s }))(t)
	defer network.Close()
	fake := lvmfake.New()
	fake.AddGroup("carve", 4<<20, 32)
	f := flags{nodeName: "node", socket: filepath.Join(t.TempDir(), "lvmd.sock")}
	f.controller, f.controllerCA, f.tokenFile = network.Dials()
	c := must.Get(config.Parse("lvmd.yaml", []byte(strings.ReplaceAll(valid, "carve-no-such-group", "carve"))))(t)
	o := lvmd.Options{Config: c, LVM: fake, StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Metrics: lvmd.NewMetrics()}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- serveConfiguration(ctx, f, o, &configFile{path: file(t, valid)}, "", manager{}) }()
	defer func() {
		stop()
		must.Succeed(t, <-ended)
	}()
	session := <-sessions
	socket := must.Get(lvmd.Dial(f.socket))(t)
	defer socket.Close()

	for _, service := range []grpc.ServiceDesc{lvmdv1.LVMD_ServiceDesc, healthpb.Health_ServiceDesc} {
		var names []string
		for _, m := range service.Methods {
			names = append(names, m.MethodName)
		}
		for _, s := range service.Streams {
			names = append(names, s.StreamName)
		}
		for _, name := range names {
			method := "/" + service.ServiceName + "/" + name
			isWatch := method == lvmdv1.LVMD_Watch_FullMethodName
			if got, want := denied(t, session, method, "lvmd's unix socket"), slices.Contains(onlySocket, name) && !isWatch; got != want {
				t.Errorf("%s over the uplink is denied: %v, want %v", method, got, want)
			}
			if got, want := denied(t, socket, method, "the uplink"), slices.Contains(onlyUplink, name); got != want {
				t.Errorf("%s over the unix socket is denied: %v, want %v", method, got, want)
			}
		}
	}
}

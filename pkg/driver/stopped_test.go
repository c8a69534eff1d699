package driver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/lvmdclient"
	"github.com/carve-csi/carve/pkg/driver/mount/mountfake"
	"github.com/carve-csi/carve/pkg/must"
)

// stopped stops after listing its volumes.
type stopped struct {
	lvmdv1.LVMDClient
	volumes []*lvmdv1.Volume
	asked   int
}

func (s *stopped) ListVolumes(context.Context, *lvmdv1.ListVolumesRequest, ...grpc.CallOption) (*lvmdv1.ListVolumesResponse, error) {
	return &lvmdv1.ListVolumesResponse{Volumes: s.volumes}, nil
}

func (s *stopped) NoteHealth(ctx context.Context, _ *lvmdv1.NoteHealthRequest, _ ...grpc.CallOption) (*lvmdv1.NoteHealthResponse, error) {
	s.asked++
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

func TestHealthIsKnownWhileLvmdDoesNotAnswerThatItIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lvmd := &stopped{}
		node := must.Get(New(t.Context(), Options{NodeName: "n", KubeletDir: "/k", LVMD: lvmd, Mounts: &mountfake.Table{},
			Metrics: NewMetrics(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))}))(t)
		for _, id := range []string{"cv1", "cv2"} {
			lvmd.volumes = append(lvmd.volumes, &lvmdv1.Volume{Id: id, State: lvmdv1.VolumeState_VOLUME_STATE_READY})
			node.unmounter.note(id, "/k/"+id, errors.New("busy"))
		}
		begin := time.Now()
		found := node.CheckHealth(t.Context(), Conditions{})
		if took := time.Since(begin); len(found) != 2 || lvmd.asked != 1 || took != lvmdclient.Timeout {
			t.Errorf("found %q after %v, and lvmd was asked %d times", found, took, lvmd.asked)
		}
	})
}

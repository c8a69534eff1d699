package controller

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestEveryCallOfASidecarToANodeIsMeasuredAndNoOther(t *testing.T) {
	h := newHarness(t)
	node := h.thinNode("n1", 4*gib)
	h.run()
	waittest.Until(t, "the node connects", func() bool { return h.c.core.Fleet.Connected() == 1 })
	var volume, snapshot string
	for _, code := range []codes.Code{codes.OK, codes.Unavailable} {
		node.SetDown(code != codes.OK)
		for _, call := range []struct {
			method string
			do     func(context.Context, *fleet.Fleet) error
		}{
			{"CreateVolume", func(ctx context.Context, f *fleet.Fleet) error {
				made, err := f.CreateVolume(ctx, "n1", &lvmdv1.CreateVolumeRequest{Name: "v", RequiredBytes: 100 * mib, Mode: lvmdv1.VolumeMode_VOLUME_MODE_BLOCK})
				volume = made.GetId()
				return err
			}},
			{"ControllerExpandVolume", func(ctx context.Context, f *fleet.Fleet) error {
				_, err := f.ExpandVolume(ctx, "n1", &lvmdv1.ExpandVolumeRequest{Id: volume, RequiredBytes: 200 * mib})
				return err
			}},
			{"CreateSnapshot", func(ctx context.Context, f *fleet.Fleet) error {
				made, err := f.CreateSnapshot(ctx, "n1", &lvmdv1.CreateSnapshotRequest{Name: "s", SourceVolumeId: volume})
				snapshot = made.GetId()
				return err
			}},
			{"", func(ctx context.Context, f *fleet.Fleet) error {
				_, err := f.GetSnapshot(ctx, "n1", &lvmdv1.GetSnapshotRequest{Id: snapshot})
				return err
			}},
			{"DeleteSnapshot", func(ctx context.Context, f *fleet.Fleet) error {
				return f.DeleteSnapshot(ctx, "n1", &lvmdv1.DeleteSnapshotRequest{Id: snapshot})
			}},
			{"DeleteVolume", func(ctx context.Context, f *fleet.Fleet) error { return f.DeleteVolumeByID(ctx, "n1", volume) }},
		} {
			before := measured(t, h, "csi_sidecar_operations_seconds ")
			if err := call.do(t.Context(), h.c.core.Fleet); status.Code(err) != code {
				t.Fatalf("%s: want %s, got %v", call.method, code, err)
			}
			if call.method != "" {
				before["csi_sidecar_operations_seconds /csi.v1.Controller/"+call.method+" "+code.String()]++
			}
			if after := measured(t, h, "csi_sidecar_operations_seconds "); !maps.Equal(before, after) {
				t.Errorf("after %q, %s: want %v, got %v", call.method, code, before, after)
			}
		}
	}
}

// measured returns counts by metric, method and code; metric is a prefix.
func measured(t *testing.T, h *harness, metric string) map[string]uint64 {
	t.Helper()
	counts := map[string]uint64{}
	for _, family := range must.Get(h.c.o.Registerer.(*prometheus.Registry).Gather())(t) {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			calls := family.GetName() + " " + labels["method_name"] + " " + labels["grpc_status_code"]
			if labels["driver_name"] == "carve.csi.local" && strings.HasPrefix(calls, metric) {
				counts[calls] = m.GetHistogram().GetSampleCount()
			}
		}
	}
	return counts
}

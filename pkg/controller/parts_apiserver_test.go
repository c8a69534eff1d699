//go:build apiserver

package controller

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/controller/csiservice"
)

// TestASidecarProvisionsOnARealAPIServer leaves claims to the upstream provisioner's
// library over the CSI socket, on a real API server.
func TestASidecarProvisionsOnARealAPIServer(t *testing.T) {
	w := newWorld(t, connectToAPIServer(t))
	w.namespace = "default"
	socket := filepath.Join(socketDir(t), "csi.sock")
	c := actWith(t, w, Options{Client: w.client, Namespace: "default", CompleteBinding: true, CSISocket: socket, Disable: []string{PartProvisioning}})
	listener, err := csiservice.Listen(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- c.csiService().Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	upstreamActsBy(t, w, csiSidecar{csi.NewControllerClient(connection)})

	claim := w.claim(t, w.class(t, nil), "n2", nil)
	w.waitBound(t, claim)
	v := w.nodes["n2"].Volumes()[volumeName(claim)]
	if pv := w.pv(claim); v == nil || pv.Spec.CSI.VolumeHandle != v.GetId() || pv.Spec.CSI.VolumeAttributes[identityKey] != "" {
		t.Errorf("PersistentVolume %+v, on the node %v", pv.Spec, v)
	}
	events, err := w.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(claim.UID)})
	if err != nil || slices.ContainsFunc(events.Items, func(e v1.Event) bool { return e.Source.Component == "carve-controller" }) {
		t.Errorf("ours has to do with it: %+v %v", events.Items, err)
	}
	w.delete(t, claim)
	eventually(t, "the volume goes with its claim", func() bool { return w.pv(claim) == nil && len(w.nodes["n2"].Volumes()) == 0 })
}

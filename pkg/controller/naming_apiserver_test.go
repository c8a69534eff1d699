//go:build apiserver

package controller

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/uplink/uplinktest"
)

// TestTheControllersRightsAreEnoughToNameTheReplicas has a replica with the rights that are shipped see two changes of
// the replicas' addresses.
func TestTheControllersRightsAreEnoughToNameTheReplicas(t *testing.T) {
	client := connectToAPIServer(t)
	install(t, client)
	const service = "carve-uplink"
	slices := client.DiscoveryV1().EndpointSlices(ours)
	t.Cleanup(func() { _ = slices.Delete(context.Background(), service+"-1", metav1.DeleteOptions{}) })
	log := slog.New(slog.DiscardHandler)
	nodes := fleet.New(fleet.Options{Log: log})
	t.Cleanup(nodes.Close)
	n := newNaming(Options{Client: asController(t), Namespace: ours, Log: log}, nodes)
	net := must.Get(uplinktest.NewNetwork(t.TempDir(), func(s *uplink.Session) { nodes.Add(s); n.connected(s.Node()) }))(t)
	t.Cleanup(net.Close)
	var running sync.WaitGroup
	running.Go(func() { _ = n.run(t.Context()) })
	t.Cleanup(running.Wait)
	node := lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
	net.Attach(node)
	replicasAt(t, client, ours, service, "10.0.0.1")
	wantNamed(t, node, 1, "10.0.0.1")
	replicasAt(t, client, ours, service, "10.0.0.1", "10.0.0.2")
	wantNamed(t, node, 2, "10.0.0.1", "10.0.0.2")
}

package controller

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/csisocket"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// socketDir is a directory for sockets, whose paths may have no more than 107
// bytes.
func socketDir(t *testing.T) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "carve"))(t)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// serveCSI serves the harness' controller's CSI service on a socket.
func (h *harness) serveCSI() (socket string) {
	h.t.Helper()
	waittest.Until(h.t, "the view of the cluster is complete", h.c.core.Synced)
	socket = filepath.Join(socketDir(h.t), "csi.sock")
	listener := must.Get(csisocket.Listen(h.t.Context(), socket))(h.t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.c.csiService().Serve(ctx, listener) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			h.t.Error(err)
		}
	})
	return socket
}

// bareNode is a CSI node service that can do nothing, at which nothing is
// staged or published.
type bareNode struct{ csi.UnimplementedNodeServer }

func (bareNode) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (bareNode) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "n1", AccessibleTopology: &csi.Topology{Segments: map[string]string{names.TopologyNode: "n1"}}}, nil
}

func (bareNode) NodeUnpublishVolume(context.Context, *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// serveBareNode serves it, with the Identity service of the harness' controller.
func (h *harness) serveBareNode() (socket string) {
	h.t.Helper()
	socket = filepath.Join(socketDir(h.t), "node.sock")
	listener := must.Get(csisocket.Listen(h.t.Context(), socket))(h.t)
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, h.c.csiService())
	csi.RegisterNodeServer(server, bareNode{})
	go func() { _ = server.Serve(listener) }()
	h.t.Cleanup(server.Stop)
	return socket
}

// thinNode adds a node whose only class has snapshots.
func (h *harness) thinNode(name string, bytes int64) *lvmdfake.Server {
	h.t.Helper()
	h.node(name, 0)
	s := lvmdfake.New(name, lvmdfake.Class{Name: "thin", Default: true, Bytes: bytes, Thin: true})
	h.attach(s, name)
	return s
}

// TestTheControllerServiceConforms runs the CSI project's own suite against the
// service, with a real fleet of fake nodes behind it.
func TestTheControllerServiceConforms(t *testing.T) {
	h := newHarness(t)
	nodes := []*lvmdfake.Server{h.thinNode("n1", 8*gib), h.thinNode("n2", 8*gib), h.thinNode("n3", 8*gib)}
	h.run()
	socket := h.serveCSI()
	config := sanity.NewTestConfig()
	config.Address, config.ControllerAddress = "unix:"+h.serveBareNode(), "unix:"+socket
	config.TestVolumeSize, config.TestVolumeExpandSize = 64*mib, 128*mib
	config.StagingPath, config.TargetPath = filepath.Join(socketDir(t), "staging"), filepath.Join(socketDir(t), "target")
	sc := sanity.GinkgoTest(&config)
	defer sc.Finalize()
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	// The node service is only there to be cleaned up on.
	suite.SkipStrings = []string{`Node Service`}
	reporter.Succinct, reporter.NoColor = true, true
	if !ginkgo.RunSpecs(t, "CSI sanity: controller", suite, reporter) {
		t.Error("the service does not conform")
	}
	for _, node := range nodes {
		if v, s := node.Volumes(), node.Snapshots(); len(v)+len(s) > 0 {
			t.Errorf("left behind: %v, %v", v, s)
		}
	}
}

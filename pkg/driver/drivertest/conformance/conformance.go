// Package conformance runs the CSI project's own suite, csi-sanity, against a
// node plugin on a machine, whether its lvmd and its mounts are real or not.
package conformance

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"

	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
)

// Run starts a plugin and runs the suite's Identity and Node cases against it,
// with volumes of that access type, "mount" or "block", and that size in
// bytes from its lvmd. It can be called once in a process, as Ginkgo can.
func Run(t *testing.T, m *drivertest.Machine, accessType string, size int64) {
	t.Helper()
	socket := filepath.Join(m.Dir, "controller.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterControllerServer(server, &drivertest.Controller{LVMD: m.LVMD})
	csi.RegisterIdentityServer(server, drivertest.WithController{
		IdentityServer: driver.NewIdentity("test", func(context.Context) error { return nil }),
	})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	m.Controller = true
	m.Start()
	config := sanity.NewTestConfig()
	config.Address = "unix:" + m.CSISocket()
	config.ControllerAddress = "unix:" + socket
	config.StagingPath = m.Path("staging")
	config.TargetPath = m.Path("targets")
	config.TestVolumeSize = size
	config.TestVolumeExpandSize = 2 * size
	config.TestVolumeAccessType = accessType
	sc := sanity.GinkgoTest(&config)
	defer sc.Finalize()

	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	// The controller is a stand-in that only creates volumes.
	suite.SkipStrings = []string{`\[(Group)?Controller `}
	reporter.Succinct, reporter.NoColor = true, true
	if !ginkgo.RunSpecs(t, "CSI sanity: "+accessType, suite, reporter) {
		t.Error("the plugin does not conform")
	}
	if points, err := m.Mounts.Below(m.KubeletDir); err != nil || len(points) != 0 {
		t.Errorf("mounts are left: %v, %v", points, err)
	}
	if left, err := filepath.Glob(filepath.Join(m.KubeletDir, "*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

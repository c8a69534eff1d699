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
// once for each device class, with volumes of that class from its lvmd, of that
// access type, "mount" or "block", and that size in bytes. It can be called once
// in a process, as Ginkgo can.
func Run(t *testing.T, m *drivertest.Machine, accessType string, size int64, classes ...string) {
	t.Helper()
	m.Controller = true
	m.Start()
	for _, class := range classes {
		controller := controllerOf(t, m, class)
		config := sanity.NewTestConfig()
		config.Address = "unix:" + m.CSISocket()
		config.ControllerAddress = "unix:" + controller
		config.StagingPath = m.Path("staging")
		config.TargetPath = m.Path("targets")
		config.TestVolumeSize = size
		config.TestVolumeExpandSize = 2 * size
		config.TestVolumeAccessType = accessType
		ginkgo.Describe("class "+class, func() {
			suite := sanity.GinkgoTest(&config)
			t.Cleanup(suite.Finalize)
		})
	}

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

// controllerOf serves the stand-in of a controller that creates volumes of a
// class, until the test's end, and returns its socket.
func controllerOf(t *testing.T, m *drivertest.Machine, class string) string {
	t.Helper()
	socket := filepath.Join(m.Dir, "controller-"+class+".sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterControllerServer(server, &drivertest.Controller{LVMD: m.LVMD, DeviceClass: class})
	csi.RegisterIdentityServer(server, drivertest.WithController{
		IdentityServer: driver.NewIdentity("test", func(context.Context) error { return nil }),
	})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return socket
}

// Package conformance runs the CSI project's own suite, csi-sanity, against a
// node plugin on a machine, whether its lvmd and its mounts are real or not.
package conformance

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"

	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/must"
)

// Suite is what is run.
type Suite struct {
	// AccessType is that of the volumes: "mount" or "block".
	AccessType string
	// Bytes is their size.
	Bytes int64
	// Classes are the device classes that they are of, each with all of the node's cases.
	Classes []Class
}

// Class is a device class of the machine.
type Class struct {
	Name string
	// Floor is how many cases have to run, at least.
	Floor Cases
}

// Run starts a plugin and runs the suite against it. It can be called once in a
// process, as Ginkgo can.
func Run(t *testing.T, m *drivertest.Machine, s Suite) {
	t.Helper()
	m.Controller = true
	before := inKubeletDir(t, m)
	plugin := m.Start()
	checkNode(t, plugin.IdentityClient, plugin.NodeClient)
	for _, class := range s.Classes {
		config := sanity.NewTestConfig()
		config.Address = "unix:" + m.CSISocket()
		config.ControllerAddress = "unix:" + standIn(t, m, class.Name)
		config.StagingPath = m.Path("staging")
		config.TargetPath = m.Path("targets")
		config.TestVolumeSize = s.Bytes
		config.TestVolumeExpandSize = 2 * s.Bytes
		config.TestVolumeAccessType = s.AccessType
		ginkgo.Describe("class "+class.Name, func() {
			suite := sanity.GinkgoTest(&config)
			t.Cleanup(suite.Finalize)
		})
	}

	var ran map[string]Cases
	ginkgo.ReportAfterSuite("count the cases", func(report ginkgo.Report) { ran = count(report) })
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.SkipStrings = []string{`\[(Group)?Controller `}
	reporter.Succinct, reporter.NoColor = true, true
	if !ginkgo.RunSpecs(t, "CSI sanity: "+s.AccessType, suite, reporter) {
		t.Error("the plugin does not conform")
	}
	for _, class := range s.Classes {
		ran["class "+class.Name].check(t, s.AccessType+", class "+class.Name, class.Floor)
	}
	if points, err := m.Mounts.Below(m.KubeletDir); err != nil || len(points) != 0 {
		t.Errorf("mounts are left: %v, %v", points, err)
	}
	if left := inKubeletDir(t, m); !slices.Equal(left, before) {
		t.Errorf("left behind: %q, before there were %q", left, before)
	}
}

func inKubeletDir(t *testing.T, m *drivertest.Machine) []string {
	t.Helper()
	return must.Get(filepath.Glob(filepath.Join(m.KubeletDir, "*")))(t)
}

// standIn serves the stand-in of a controller that creates volumes of a class, until the test's end, and returns its socket.
func standIn(t *testing.T, m *drivertest.Machine, class string) string {
	t.Helper()
	socket := filepath.Join(m.Dir, "controller-"+class+".sock")
	listener := must.Get(net.Listen("unix", socket))(t)
	server := grpc.NewServer()
	csi.RegisterControllerServer(server, &drivertest.Controller{LVMD: m.LVMD, DeviceClass: class})
	csi.RegisterIdentityServer(server, drivertest.WithController{
		IdentityServer: driver.NewIdentity("test", func(context.Context) error { return nil }),
	})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return socket
}

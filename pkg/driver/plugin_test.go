package driver_test

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestRegistrationWithTheKubelet(t *testing.T) {
	f := newFixture(t)
	conn := must.Get(grpc.NewClient("unix:"+f.machine.RegistrationSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))))(f.t)
	defer conn.Close()
	kubelet := registerapi.NewRegistrationClient(conn)

	info := must.Get(kubelet.GetInfo(f.ctx(), &registerapi.InfoRequest{}))(f.t)
	if info.GetType() != "CSIPlugin" || info.GetName() != names.Driver || info.GetEndpoint() != f.machine.CSISocket() || len(info.GetSupportedVersions()) != 1 {
		t.Errorf("got %v", info)
	}
	if err := f.Registration.Registered(); err == nil {
		t.Error("registered before the kubelet said so")
	}
	notify := func(s *registerapi.RegistrationStatus) {
		t.Helper()
		must.Get(kubelet.NotifyRegistrationStatus(f.ctx(), s))(f.t)
	}
	notify(&registerapi.RegistrationStatus{Error: "no good"})
	if err := f.Registration.Registered(); err == nil || err.Error() != "the kubelet refused the plugin: no good" {
		t.Errorf("got %v", err)
	}
	notify(&registerapi.RegistrationStatus{PluginRegistered: true})
	if err := f.Registration.Registered(); err != nil {
		t.Error(err)
	}

	f.Stop(t)
	f.wantGone(f.machine.RegistrationSocket())
	f.wantGone(f.machine.CSISocket())
}

func TestIdentityAndInfo(t *testing.T) {
	f := newFixture(t)
	who := must.Get(f.GetPluginInfo(f.ctx(), &csi.GetPluginInfoRequest{}))(f.t)
	if who.GetName() != "carve.csi.local" || who.GetVendorVersion() != "test" {
		t.Errorf("got %v", who)
	}
	info := must.Get(f.NodeGetInfo(f.ctx(), &csi.NodeGetInfoRequest{}))(f.t)
	if info.GetNodeId() != drivertest.NodeName || info.GetMaxVolumesPerNode() != 0 ||
		info.GetAccessibleTopology().GetSegments()["topology.carve.csi.local/node"] != drivertest.NodeName {
		t.Errorf("got %v", info)
	}
	ready := func() bool {
		got := must.Get(f.Probe(f.ctx(), &csi.ProbeRequest{}))(f.t)
		return got.GetReady().GetValue()
	}
	if !ready() {
		t.Error("not ready although lvmd answers")
	}
	f.machine.StopLVMD()
	if ready() {
		t.Error("ready although lvmd does not answer")
	}
}

func TestTheNumberOfVolumesIsAsConfiguredOrWhatTheGroupsCouldHold(t *testing.T) {
	group := func(name string, most int64) *lvmdv1.ClassGroup {
		return &lvmdv1.ClassGroup{VgName: name, VgUuid: "uuid-" + name, MostVolumes: most}
	}
	class := func(name string, groups ...*lvmdv1.ClassGroup) lvmdfake.Class {
		return lvmdfake.Class{Name: name, Groups: groups}
	}
	local := class("local", group("a", 1500), group("b", 400))
	for name, test := range map[string]struct {
		configured int64
		classes    []lvmdfake.Class
		down       bool
		want       int64
	}{
		"the groups of a class add up":           {classes: []lvmdfake.Class{local}, want: 1900},
		"a group of several classes counts once": {classes: []lvmdfake.Class{local, class("thin", group("a", 1500)), class("c", group("c", 7))}, want: 1907},
		"a group that does not say is no limit":  {classes: []lvmdfake.Class{local, class("c", group("c", 0))}},
		"a node without classes has no limit":    {},
		"nor has one whose lvmd does not answer": {classes: []lvmdfake.Class{local}, down: true},
		"what is configured counts":              {configured: 7, classes: []lvmdfake.Class{local}, want: 7},
		"whatever lvmd says":                     {configured: 7, down: true, want: 7},
	} {
		t.Run(name, func(t *testing.T) {
			m := drivertest.NewFakeMachine(t)
			m.MaxVolumes = test.configured
			m.LVMD.SetClasses(test.classes...)
			m.LVMD.SetDown(test.down)
			p := m.Start()
			for range 2 {
				info, err := p.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
				if err != nil || info.GetMaxVolumesPerNode() != test.want {
					t.Errorf("got %v, error %v, want %d volumes", info, err, test.want)
				}
			}
		})
	}
}

// The kubelet registers the plugin while lvmd does not answer, and again when
// it finds another socket.
func TestTheNumberOfVolumesIsRegisteredOnceLvmdAnswers(t *testing.T) {
	m := drivertest.NewFakeMachine(t)
	m.LVMD.SetClasses(lvmdfake.Class{Name: "local", Groups: []*lvmdv1.ClassGroup{{VgName: "a", VgUuid: "uuid-a", MostVolumes: 1500}}})
	m.LVMD.SetDown(true)
	p := m.Start()
	number := func() int64 {
		return must.Get(p.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}))(t).GetMaxVolumesPerNode()
	}
	for range 2 {
		if n := number(); n != 0 {
			t.Errorf("without lvmd there are to be at most %d volumes", n)
		}
	}
	socket := func() time.Time {
		info, err := os.Stat(m.RegistrationSocket())
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	var first time.Time
	waittest.Until(t, "the plugin waits for the kubelet", func() bool { first = socket(); return !first.IsZero() })
	m.LVMD.SetDown(false)
	waittest.Until(t, "there is another socket", func() bool { now := socket(); return !now.IsZero() && !now.Equal(first) })
	if n := number(); n != 1500 {
		t.Errorf("with lvmd there are to be at most %d volumes, want 1500", n)
	}
	conn := must.Get(grpc.NewClient("unix:"+m.RegistrationSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))))(t)
	defer conn.Close()
	must.Get(registerapi.NewRegistrationClient(conn).NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}))(t)
	must.Succeed(t, p.Registration.Registered())
	if asked := strings.Count(m.Log.String(), "register the plugin again"); asked != 1 {
		t.Errorf("the kubelet is to register the plugin %d times again", asked)
	}
}

func volumesOf(t *testing.T, p *drivertest.Plugin) int64 {
	t.Helper()
	return must.Get(p.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}))(t).GetMaxVolumesPerNode()
}

// register acts as a kubelet, which from then on asks repeatedly.
func register(t *testing.T, p *drivertest.Plugin) int64 {
	t.Helper()
	must.Get(p.Registration.GetInfo(t.Context(), &registerapi.InfoRequest{}))(t)
	number := volumesOf(t, p)
	must.Get(p.Registration.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}))(t)
	return number
}

func TestTheNumberOfVolumesOfAFullNodeIsThatOfTheClaimsThere(t *testing.T) {
	const unit = lvmdfake.AllocationUnit
	class := func(name string, units int64, condition ...string) lvmdfake.Class {
		c := lvmdfake.Class{Name: name, Bytes: units * unit, Groups: []*lvmdv1.ClassGroup{{VgName: name, MostVolumes: 1000}}}
		for _, kind := range condition {
			c.Conditions = append(c.Conditions, &lvmdv1.Condition{Type: kind})
		}
		return c
	}
	unknown := lvmdfake.Class{Name: "local", Bytes: 5 * unit, Groups: []*lvmdv1.ClassGroup{{VgName: "local"}}}
	for name, test := range map[string]struct {
		configured     int64
		classes        []lvmdfake.Class
		claims, inline int // volumes of one unit in the class local
		want           int64
	}{
		"a node with space for the smallest volume is not full": {classes: []lvmdfake.Class{class("local", 5)}, claims: 3, want: 1000},
		"one that has less is":                                   {classes: []lvmdfake.Class{class("local", 5)}, claims: 4, want: 4},
		"what is configured is the number of a node with space":  {configured: 70, classes: []lvmdfake.Class{class("local", 5)}, claims: 3, want: 70},
		"and not of a full one":                                  {configured: 70, classes: []lvmdfake.Class{class("local", 5)}, claims: 5, want: 5},
		"which does not get more than that":                      {configured: 3, classes: []lvmdfake.Class{class("local", 5)}, claims: 5, want: 3},
		"that a group does not say how many it can hold is one":  {classes: []lvmdfake.Class{unknown}, claims: 5, want: 5},
		"inline volumes have no claims":                          {classes: []lvmdfake.Class{class("local", 5)}, claims: 2, inline: 3, want: 2},
		"a full node without claims takes one, as 0 is no limit": {classes: []lvmdfake.Class{class("local", 5)}, inline: 5, want: 1},
		"each class has to be full":                              {classes: []lvmdfake.Class{class("local", 5), class("other", 2)}, claims: 5, want: 2000},
		"also one that is too small for any":                     {classes: []lvmdfake.Class{class("local", 5), class("other", 1)}, claims: 5, want: 5},
		"but not one whose group is missing":                     {classes: []lvmdfake.Class{class("local", 5), class("other", 0, conditions.VolumeGroupMissing)}, claims: 5, want: 5},
		"a node whose group is still to be made is not full":     {classes: []lvmdfake.Class{class("local", 0, conditions.VolumeGroupMissing)}, want: 1000},
		"nor is one that lacks the groups of optional classes":   {classes: []lvmdfake.Class{class("local", 0)}, want: 1000},
		"nor is one on which nothing can be made":                {classes: []lvmdfake.Class{class("local", 5, conditions.NotResponding)}, claims: 5, want: 1000},
		"nor one without classes":                                {},
	} {
		t.Run(name, func(t *testing.T) {
			m := drivertest.NewFakeMachine(t)
			m.MaxVolumes, m.SmallestVolume = test.configured, 2*unit
			m.LVMD.SetClasses(test.classes...)
			for i := range test.claims + test.inline {
				ask := &lvmdv1.CreateVolumeRequest{Name: fmt.Sprint("v", i), DeviceClass: "local", RequiredBytes: unit, Mode: lvmdv1.VolumeMode_VOLUME_MODE_BLOCK,
					Owner: &lvmdv1.Owner{ClaimUid: fmt.Sprint("claim-", i)}}
				if i >= test.claims {
					ask.Owner = &lvmdv1.Owner{PodUid: "pod-1"}
				}
				must.Get(m.LVMD.CreateVolume(t.Context(), ask))(t)
			}
			p := m.Start()
			register(t, p)
			if got := volumesOf(t, p); got != test.want {
				t.Errorf("the node may have %d volumes, want %d", got, test.want)
			}
		})
	}
}

// With a kubelet that asks only once, a full node's limit would stay in force
// when space is free again.
func TestTheNumberOfVolumesFollowsFreeSpaceOnlyWhileTheKubeletAsks(t *testing.T) {
	const unit = lvmdfake.AllocationUnit
	m := drivertest.NewFakeMachine(t)
	m.SmallestVolume = unit
	m.LVMD.SetClasses(lvmdfake.Class{Name: "local", Bytes: 2 * unit, Groups: []*lvmdv1.ClassGroup{{VgName: "local", MostVolumes: 1000}}})
	p := m.Start()
	want := func(when string, got, want int64) {
		t.Helper()
		if got != want {
			t.Errorf("%s: the node may have %d volumes, want %d", when, got, want)
		}
	}
	want("at the registration", register(t, p), 1000)
	made := must.Get(m.LVMD.CreateVolume(t.Context(), &lvmdv1.CreateVolumeRequest{Name: "v", DeviceClass: "local", RequiredBytes: 2 * unit, Mode: lvmdv1.VolumeMode_VOLUME_MODE_BLOCK}))(t)
	want("when it is full", volumesOf(t, p), 1)
	m.LVMD.SetDown(true)
	want("while lvmd does not answer", volumesOf(t, p), 1)
	m.LVMD.SetDown(false)
	want("when the kubelet starts again", register(t, p), 1000)
	want("afterwards", volumesOf(t, p), 1)
	must.Get(m.LVMD.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: made.GetVolume().GetId()}))(t)
	waittest.Until(t, "the node has its former number", func() bool { return volumesOf(t, p) == 1000 })
	if strings.Contains(m.Log.String(), "register the plugin again") {
		t.Error("the kubelet is to register the plugin again")
	}
	m.LVMD.SetClasses(lvmdfake.Class{Name: "local", Bytes: 2 * unit, Groups: []*lvmdv1.ClassGroup{{VgName: "local", MostVolumes: 1000}, {VgName: "added", MostVolumes: 500}}})
	want("with another group", volumesOf(t, p), 1500)
}

func TestSocketsLeftBehindAreReplaced(t *testing.T) {
	m := drivertest.NewFakeMachine(t)
	for _, path := range []string{m.CSISocket(), m.RegistrationSocket()} {
		// A socket without a listener, as left by a killed process.
		conn := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
		conn.Close()
	}
	p := m.Start()
	if _, err := p.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(m.CSISocket())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestAFileInTheSocketsPlaceIsKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "csi.sock")
	must.Succeed(t, os.WriteFile(path, []byte("data"), 0o600))
	err := driver.Plugin{CSISocket: path, Metrics: driver.NewMetrics(), Log: slog.New(slog.DiscardHandler)}.Serve(t.Context())
	if err == nil {
		t.Error("it was replaced")
	}
}

func TestNewRefusesBadOptions(t *testing.T) {
	good := driver.Options{NodeName: "n", KubeletDir: "/var/lib/kubelet"}
	must.Get(driver.New(t.Context(), good))(t)
	for name, change := range map[string]func(*driver.Options){
		"no node name":                     func(o *driver.Options) { o.NodeName = "" },
		"a node name that is too long":     func(o *driver.Options) { o.NodeName = string(make([]byte, 257)) },
		"a negative number of volumes":     func(o *driver.Options) { o.MaxVolumes = -1 },
		"a negative smallest volume":       func(o *driver.Options) { o.SmallestVolume = -1 },
		"a relative kubelet directory":     func(o *driver.Options) { o.KubeletDir = "kubelet" },
		"the root as kubelet directory":    func(o *driver.Options) { o.KubeletDir = "/" },
		"negative memory for checks":       func(o *driver.Options) { o.CheckMemory = -1 },
		"a negative limit of inline sizes": func(o *driver.Options) { o.InlineMaxBytes = -1 },
		"a kubelet directory with a slash": func(o *driver.Options) { o.KubeletDir = "/var/lib/kubelet/" },
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			change(&o)
			if _, err := driver.New(t.Context(), o); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestTheMetricsCountCalls(t *testing.T) {
	f := newFixture(t)
	v := f.volume("a", "ext4")
	must.Succeed(f.t, f.stage(v, filesystemAccess(writer)))
	_ = f.stage(v, nil)
	families := must.Get(f.Metrics.Registry.Gather())(f.t)
	counts := map[string]uint64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			counts[family.GetName()+" "+strings.Join(labels, " ")] = m.GetHistogram().GetSampleCount()
		}
	}
	for _, calls := range []string{
		"csi_plugin_operations_seconds carve.csi.local OK /csi.v1.Node/NodeStageVolume",
		"csi_plugin_operations_seconds carve.csi.local InvalidArgument /csi.v1.Node/NodeStageVolume",
	} {
		if counts[calls] != 1 {
			t.Errorf("calls of %s: want 1, got %d of %v", calls, counts[calls], counts)
		}
	}
}

//go:build e2e

package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// Files of the nodes that stand in for disks: the one that the overlay loop names, and
// those by which the test has the volume group span as many disks as the overlay layouts needs.
const (
	loopFile     = "/var/lib/carve/loop/carve.img"
	loopFileSize = int64(10 << 30)
	// ownData is the most that LVM's own data take of the file.
	ownData    = int64(64 << 20)
	extraDisks = 3
	extraDisk  = "/var/lib/e2e-disk-"
)

// TestTheLoopAndLayoutsOverlaysServeVolumes installs one after the other, each instead of
// what the harness installs. The nodes' volume group carve has another name meanwhile: they
// are as the overlay loop expects them, and then as the overlay layouts does.
func TestTheLoopAndLayoutsOverlaysServeVolumes(t *testing.T) {
	s := begin(t)
	s.Cleanup(s.withoutOverlays)
	s.withoutAgents(s.ctx)
	s.everyNode(s.ctx, "vgrename carve carve-kept")

	s.overlay("loop")
	for _, node := range s.nodes {
		s.must(carve.Until(s.ctx, waitTimeout, "the file's capacity is published", func(ctx context.Context) error {
			got, err := s.CapacityBytes(ctx, node, "carve")
			if err == nil && (got > loopFileSize || got < loopFileSize-ownData) {
				err = fmt.Errorf("want %d, less at most %d, got %d", loopFileSize, ownData, got)
			}
			return err
		}), "make the volume group of "+node)
	}
	s.start("plain", podOptions{bytes: 16 * extent, node: s.nodes[0]})
	s.running("plain")
	s.wantMarker("plain")
	disks := strings.Fields(s.node(s.nodes[0], "losetup", "--noheadings", "--output", "NAME", "--associated", loopFile))
	if len(disks) != 1 {
		t.Fatalf("loop devices of %s: want one, got %q", loopFile, disks)
	}
	if got := s.layoutOf("plain"); got.Type != "linear" || got.group != "carve" || !strings.HasPrefix(got.Devices, disks[0]+"(") {
		t.Errorf("the volume of the overlay loop: want a linear one in carve on %s, got %+v", disks[0], got)
	}
	s.remove("plain")
	s.noVolumes()

	s.withoutAgents(s.ctx)
	s.everyNode(s.ctx, fmt.Sprintf(`for i in $(seq %d); do truncate --size 1G %s$i && vgextend carve "$(losetup --find --show %s$i)" || exit 1; done`,
		extraDisks, extraDisk, extraDisk))
	for _, class := range []string{"carve-fast", "carve-safe"} {
		s.dropStorageClass(class)
	}
	s.overlay("layouts")
	for _, node := range s.nodes {
		s.must(carve.Until(s.ctx, waitTimeout, "the capacities are published", func(ctx context.Context) error {
			// Both need space on several disks, of which the small ones have 1 GiB each.
			for class, want := range map[string]int64{"carve-fast": 4 << 30, "carve-safe": 3 << 29} {
				if got, err := s.CapacityBytes(ctx, node, class); err != nil || got < want/2 {
					return fmt.Errorf("%s of %s: want at least %d, got %d, %w", class, node, want/2, got, err)
				}
			}
			return nil
		}), "offer the classes on "+node)
	}
	s.start("fast", podOptions{class: "carve-fast", bytes: 384 * mebibyte, node: s.nodes[0]})
	s.start("safe", podOptions{class: "carve-safe", bytes: 16 * extent, node: s.nodes[1]})
	s.running("fast", "safe")
	s.wantMount("fast", mountPath, "xfs")
	s.wantMount("safe", mountPath, "ext4")
	s.wantMarker("fast")
	s.wantMarker("safe")
	if got := s.layoutOf("fast"); got.Type != "striped" || got.group != "carve" || got.Stripes != "4" || got.StripeSize != "131072" || len(got.devices()) != 4 {
		t.Errorf("the volume of the class fast: want four stripes of 128 KiB on four disks in carve, got %+v", got)
	}
	got := s.layoutOf("safe")
	legs := map[string]bool{}
	for _, image := range got.devices() {
		leg := s.segment(s.nodes[1], "lv_name="+image)
		for _, device := range leg.devices() {
			legs[device] = true
		}
	}
	if got.Type != "raid1" || got.group != "carve" || len(got.devices()) != 2 || len(legs) != 2 {
		t.Errorf("the volume of the class safe: want a mirror on two disks in carve, got %+v on %v", got, legs)
	}
	s.remove("fast", "safe")
	s.noVolumes()
}

// withoutOverlays gives the nodes their volume group back, and installs again what the
// harness does.
func (s *scope) withoutOverlays() {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*waitTimeout)
	defer cancel()
	s.withoutAgents(ctx)
	// The group goes with all that is in it, before the nodes are compared.
	for _, node := range s.nodes {
		left, err := s.LogicalVolumes(ctx, node)
		left = slices.DeleteFunc(left, func(v carve.LogicalVolume) bool { return !strings.HasPrefix(v.Name, "cv") })
		if err != nil || len(left) > 0 {
			s.Errorf("left on %s: %+v, error %v", node, left, err)
		}
	}
	s.everyNode(ctx, fmt.Sprintf(`set -ex
		if vgs carve-kept; then
			if vgs carve; then vgremove --force --yes carve; fi
			for file in %s %s*; do
				for device in $(losetup --noheadings --output NAME --associated $file); do losetup --detach $device; done
				rm -f $file
			done
		fi`, loopFile, extraDisk))
	for _, node := range s.nodes {
		// vgrename moves no folder to a name that is there.
		left, err := s.NodeExec(ctx, node, "sh", "-c", `if vgs carve-kept >&2; then
			find /dev/carve /dev/carve-kept || true
			rm -rf /dev/carve /dev/carve-kept
			vgrename carve-kept carve >&2
		fi`)
		if err != nil || left != "" {
			s.Errorf("left in /dev on %s: %q, error %v", node, left, err)
		}
	}
	_, err := s.Kubectl(ctx, nil, "apply", "--kustomize", "../deploy")
	s.must(err, "install again what the harness does")
	s.agentsOn(ctx, "null")
	s.must(s.WaitReady(ctx, waitTimeout), "Carve is well again")
}

// withoutAgents removes the node agents and waits until they are gone.
func (s *scope) withoutAgents(ctx context.Context) {
	s.Helper()
	s.agentsOn(ctx, `{"carve.csi.local/e2e": "nowhere"}`)
	s.must(carve.Until(ctx, waitTimeout, "there are no agents", func(ctx context.Context) error {
		pods, err := s.ProgramPods(ctx, agentPods)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("there are %d", len(pods))
		}
		return err
	}), "remove the agents")
}

// overlay installs an overlay and waits until its agents run.
func (s *scope) overlay(name string) {
	s.Helper()
	_, err := s.Kubectl(s.ctx, nil, "apply", "--kustomize", "../deploy-"+name)
	s.must(err, "install the overlay "+name)
	s.agentsOn(s.ctx, "null")
	s.must(carve.Until(s.ctx, waitTimeout, "the agents run", func(ctx context.Context) error {
		agents, err := s.AppsV1().DaemonSets(carve.Namespace).Get(ctx, "carve-node", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status := agents.Status; status.ObservedGeneration < agents.Generation || int(status.NumberReady) != len(s.nodes) || int(status.UpdatedNumberScheduled) != len(s.nodes) {
			return fmt.Errorf("%d of %d are ready", status.NumberReady, len(s.nodes))
		}
		return nil
	}), "run the overlay "+name)
}

// everyNode runs a script on all nodes at once.
func (s *scope) everyNode(ctx context.Context, script string) {
	s.Helper()
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range s.nodes {
		group.Go(func() error {
			_, err := s.NodeExec(ctx, node, "sh", "-c", script)
			return err
		})
	}
	s.must(group.Wait(), "run a script on the nodes")
}

// wantMarker waits until a Pod reads from its volume what it wrote.
func (s *scope) wantMarker(pod string) {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, pod+" reads what it wrote", func(ctx context.Context) error {
		output, err := s.PodExec(ctx, s.namespace, pod, "cat", mountPath+"/marker")
		if err == nil && strings.TrimSpace(output) != pod {
			err = fmt.Errorf("got %q", output)
		}
		return err
	}), "use the volume")
}

// noVolumes waits until there is no PersistentVolume of the test, and no logical volume:
// lvmd may still clear one whose PersistentVolume is gone.
func (s *scope) noVolumes() {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, "the volumes are gone", func(ctx context.Context) error {
		list, err := s.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if ref := list.Items[i].Spec.ClaimRef; ref != nil && ref.Namespace == s.namespace {
				return errors.New("there is " + list.Items[i].Name)
			}
		}
		if left, err := s.myVolumes(ctx); err != nil || len(left) > 0 {
			return errors.Join(err, fmt.Errorf("there are logical volumes %q", left))
		}
		return nil
	}), "remove the volumes")
}

// segment is how LVM lays out a logical volume.
type segment struct {
	Type       string `json:"segtype"`
	Stripes    string `json:"stripes"`
	StripeSize string `json:"stripe_size"`
	// Devices are those below, with the first extent of each: /dev/vdb(0),/dev/vdc(16).
	Devices string `json:"devices"`
	group   string
}

// devices returns the names of the devices below, without the extents.
func (g segment) devices() []string {
	var names []string
	for _, device := range strings.Split(g.Devices, ",") {
		name, _, _ := strings.Cut(device, "(")
		names = append(names, name)
	}
	return names
}

// layoutOf returns how the volume of a Pod is laid out on its node.
func (s *scope) layoutOf(pod string) segment {
	s.Helper()
	_, pv, err := s.EphemeralVolume(s.ctx, s.namespace, pod, "scratch")
	s.must(err, "find the volume of "+pod)
	return s.segment(s.nodeOf(pod), "lv_name="+pv.Spec.CSI.VolumeHandle)
}

// segment returns the one segment of the logical volume that is selected on a node.
func (s *scope) segment(node, selection string) segment {
	s.Helper()
	output := s.node(node, "lvs", "--all", "--reportformat", "json", "--units", "b", "--nosuffix",
		"--options", "vg_name,segtype,stripes,stripe_size,devices", "--select", selection)
	type row struct {
		segment
		Group string `json:"vg_name"`
	}
	var report struct {
		Report []struct {
			LV []row `json:"lv"`
		} `json:"report"`
	}
	s.must(json.Unmarshal([]byte(output), &report), "read what lvs printed: "+output)
	if len(report.Report) != 1 || len(report.Report[0].LV) != 1 {
		s.Fatalf("segments of %s on %s: want one, got %s", selection, node, output)
	}
	found := report.Report[0].LV[0]
	found.group = found.Group
	return found.segment
}

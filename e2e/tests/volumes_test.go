//go:build e2e

package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestEphemeralVolumeLastsAsLongAsItsPod is the demo's scenario.
func TestEphemeralVolumeLastsAsLongAsItsPod(t *testing.T) {
	s := begin(t)
	before := map[string]int64{}
	for _, node := range s.nodes {
		before[node] = s.capacity(node)
	}
	s.must(s.ApplyFile(s.ctx, s.namespace, "../../deploy/examples/ephemeral-pod.yaml"), "apply the example")
	s.running("scratch")

	if output, err := s.PodExec(s.ctx, s.namespace, "scratch", "cat", "/scratch/started"); err != nil || strings.TrimSpace(output) == "" {
		t.Errorf("the Pod's file: want a date, got %q, %v", output, err)
	}
	node := s.nodeOf("scratch")
	claim, pv, err := s.EphemeralVolume(s.ctx, s.namespace, "scratch", "scratch")
	s.must(err, "find the volume")
	if want := "pvc-" + string(claim.UID); pv.Name != want {
		t.Errorf("the PersistentVolume's name: want %s, got %s", want, pv.Name)
	}
	if got := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]; got.Key != carve.TopologyNode || !slices.Equal(got.Values, []string{node}) {
		t.Errorf("the PersistentVolume's affinity: want %s in [%s], got %v", carve.TopologyNode, node, got)
	}
	volumes, err := s.LogicalVolumes(s.ctx, node)
	s.must(err, "list logical volumes")
	index := slices.IndexFunc(volumes, func(v carve.LogicalVolume) bool { return v.Name == pv.Spec.CSI.VolumeHandle })
	if index < 0 {
		t.Fatalf("no logical volume %s on %s, only %v", pv.Spec.CSI.VolumeHandle, node, volumes)
	}
	if got := volumes[index].SizeBytes; got != 1<<30 {
		t.Errorf("the logical volume's size: want %d, got %d", 1<<30, got)
	}
	if tags := strings.Join(volumes[index].Tags, " "); !strings.Contains(tags, string(claim.UID)) || !strings.Contains(tags, s.namespace) {
		t.Errorf("the logical volume's tags: want the claim's UID %s and namespace %s, got %s", claim.UID, s.namespace, tags)
	}
	s.must(carve.Until(s.ctx, waitTimeout, "the published capacity shrank by the volume", func(ctx context.Context) error {
		return s.wantCapacity(ctx, node, before[node]-1<<30)
	}), "capacity")

	s.remove("scratch")
	s.must(carve.Until(s.ctx, waitTimeout, "the capacity is back", func(ctx context.Context) error {
		return s.wantCapacity(ctx, node, before[node])
	}), "capacity")
	volumes, err = s.LogicalVolumes(s.ctx, node)
	s.must(err, "list logical volumes")
	if slices.ContainsFunc(volumes, func(v carve.LogicalVolume) bool { return v.Name == pv.Spec.CSI.VolumeHandle }) {
		t.Errorf("the logical volume %s is still there", pv.Spec.CSI.VolumeHandle)
	}
}

func (s *scope) wantCapacity(ctx context.Context, node string, want int64) error {
	got, err := s.CapacityBytes(ctx, node, "carve")
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("capacity of %s: want %d, got %d", node, want, got)
	}
	return nil
}

func TestStatefulSetKeepsItsScratchSpaceOverRestarts(t *testing.T) {
	s := beside(t)
	s.must(s.ApplyFile(s.ctx, s.namespace, "../../deploy/examples/statefulset.yaml"), "apply the example")
	s.running("worker-0", "worker-1")
	home := s.nodeOf("worker-0")
	s.restart("worker-0")
	s.running("worker-0")
	if got := s.nodeOf("worker-0"); got != home {
		t.Errorf("worker-0 after its restart: want node %s, where its volume is, got %s", home, got)
	}
	s.must(carve.Until(s.ctx, waitTimeout, "the second start is counted", func(ctx context.Context) error {
		output, err := s.PodExec(ctx, s.namespace, "worker-0", "cat", "/scratch/starts")
		if err != nil {
			return err
		}
		if got := strings.Count(output, "started"); got != 2 {
			return fmt.Errorf("starts: want 2, got %d in %q", got, output)
		}
		return nil
	}), "read the file that both Pods wrote")
}

// restart deletes a Pod that its controller will make again, and waits until
// that has another UID.
func (s *scope) restart(name string) {
	s.Helper()
	old, err := s.CoreV1().Pods(s.namespace).Get(s.ctx, name, metav1.GetOptions{})
	s.must(err, "get Pod "+name)
	s.must(s.CoreV1().Pods(s.namespace).Delete(s.ctx, name, metav1.DeleteOptions{}), "delete Pod "+name)
	s.must(carve.Until(s.ctx, waitTimeout, name+" was made again", func(ctx context.Context) error {
		p, err := s.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.UID == old.UID {
			return fmt.Errorf("still the old one, %s", p.Status.Phase)
		}
		return nil
	}), "restart "+name)
}

func TestRawBlockVolumeIsADeviceOfTheSizeAskedFor(t *testing.T) {
	s := beside(t)
	s.start("raw", podOptions{bytes: 64 << 20, block: true})
	s.running("raw")
	s.exec("raw", "sh", "-c", "printf carved-bytes | dd of="+devicePath+" bs=4096 seek=16383 conv=notrunc,sync 2>/dev/null")
	if got := s.exec("raw", "sh", "-c", "dd if="+devicePath+" bs=4096 skip=16383 count=1 2>/dev/null | head -c 12"); got != "carved-bytes" {
		t.Errorf("the device's last block: want carved-bytes, got %q", got)
	}
	if got := strings.TrimSpace(s.exec("raw", "blockdev", "--getsize64", devicePath)); got != "67108864" {
		t.Errorf("the device's size: want 67108864, got %s", got)
	}
}

// TestStorageClassesChooseHowVolumesAreMade has Pods with each file system, the
// profile scratch, and encryption, at the same time.
func TestStorageClassesChooseHowVolumesAreMade(t *testing.T) {
	s := beside(t)
	const secret = "a-secret-that-is-carved-nowhere"
	script := "echo " + secret + " > " + mountPath + "/secret && sync && exec sleep 1000000"
	const plain, encrypted = "plain", "encrypted"
	s.start(plain, podOptions{bytes: 64 << 20, script: script})
	cases := []struct {
		name       string
		bytes      int64
		parameters map[string]string
		fsType     string
	}{
		{"xfs", 512 << 20, map[string]string{"csi.storage.k8s.io/fstype": "xfs"}, "xfs"},
		{"btrfs", 512 << 20, map[string]string{"csi.storage.k8s.io/fstype": "btrfs", "carve.csi.local/mkfs-label": "cache"}, "btrfs"},
		{encrypted, 64 << 20, map[string]string{"carve.csi.local/encryption": "ephemeral"}, "ext4"},
	}
	for _, c := range cases {
		s.storageClass("e2e-"+c.name, c.parameters)
		s.start(c.name, podOptions{class: "e2e-" + c.name, bytes: c.bytes, script: script})
	}
	s.must(s.ApplyFile(s.ctx, s.namespace, "../../deploy/examples/scratch-pod.yaml"), "apply the example of the profile scratch")
	s.dropStorageClass("carve-scratch")
	s.running(plain)
	for _, c := range cases {
		s.running(c.name)
		s.wantMount(c.name, mountPath, c.fsType)
	}
	s.running("builder")
	s.wantMount("builder", "/build", "ext4", "noatime")
	for name, want := range map[string]bool{plain: true, encrypted: false} {
		if got := s.diskHolds(name, secret); got != want {
			t.Errorf("the secret of %s can be read on the disk: want %t, got %t", name, want, got)
		}
	}
}

// TestARootDirectoryIsGivenToTheApplication has Pods of another user than root write to volumes for
// all users, one of them with a group from the kubelet.
func TestARootDirectoryIsGivenToTheApplication(t *testing.T) {
	s := beside(t)
	const class = "e2e-root"
	s.storageClass(class, map[string]string{"carve.csi.local/mkfs-root-owner": "1001:1002", "carve.csi.local/mkfs-root-mode": "1777"})
	user, group := int64(1000), int64(3000)
	for name, want := range map[string]string{"alone": "1001:1002 1777", "grouped": "1001:3000 3777"} {
		p := pod(name, podOptions{class: class, bytes: 64 << 20, script: "touch " + mountPath + "/mine && exec sleep 1000000"})
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user}
		if name == "grouped" {
			p.Spec.SecurityContext.FSGroup = &group
		}
		s.create(p)
		s.running(name)
		output, err := s.PodExec(s.ctx, s.namespace, name, "stat", "-c", "%u:%g %a", mountPath)
		if got := strings.TrimSpace(output); err != nil || got != want {
			t.Errorf("the root directory of %s is %s, error %v, want %s", name, got, err, want)
		}
	}
}

// wantMount checks what is mounted somewhere in a Pod, and some of its options.
func (s *scope) wantMount(pod, path, fsType string, options ...string) {
	s.Helper()
	mounts := s.exec(pod, "cat", "/proc/mounts")
	if !slices.ContainsFunc(strings.Split(mounts, "\n"), func(line string) bool {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[1] != path || fields[2] != fsType {
			return false
		}
		given := strings.Split(fields[3], ",")
		return !slices.ContainsFunc(options, func(o string) bool { return !slices.Contains(given, o) })
	}) {
		s.Errorf("mounts of %s: want %s with %v at %s, got\n%s", pod, fsType, options, path, mounts)
	}
}

// diskHolds reports whether a text is on the logical volume of a Pod's scratch volume.
// The test fails when the volume cannot be read to its end.
func (s *scope) diskHolds(pod, text string) bool {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, "the Pod has written", func(ctx context.Context) error {
		output, err := s.PodExec(ctx, s.namespace, pod, "cat", mountPath+"/secret")
		if err == nil && !strings.Contains(output, text) {
			err = fmt.Errorf("got %q", output)
		}
		return err
	}), "write")
	s.exec(pod, "sync")
	_, pv, err := s.EphemeralVolume(s.ctx, s.namespace, pod, "scratch")
	s.must(err, "find the volume")
	// grep prints how many lines match and exits with 1 if none does. With --count it
	// reads to the end; dd, which bypasses the cache, then says how many bytes there were.
	const search = `set -o pipefail; export LC_ALL=C
		blockdev --getsize64 "$0" &&
		dd if="$0" bs=1M iflag=direct | { grep --count --text --fixed-strings "$1" || [ $? = 1 ]; }`
	device := "/dev/carve/" + pv.Spec.CSI.VolumeHandle
	result, err := s.Cluster.Exec(s.ctx, s.nodeOf(pod), "bash", "-c", search, device, text)
	s.must(err, "read the logical volume")
	var size, lines int64
	if n, err := fmt.Sscan(result.Stdout, &size, &lines); result.ExitCode != 0 || n != 2 {
		s.Fatalf("reading the logical volume of %s failed: %v, %+v", pod, err, result)
	}
	want := pv.Spec.Capacity[corev1.ResourceStorage]
	if size < want.Value() || !strings.Contains(result.Stderr, fmt.Sprintf("\n%d bytes ", size)) {
		s.Fatalf("reading the logical volume of %s: it has %d bytes, its PersistentVolume %d, want all of them read, got %q", pod, size, want.Value(), result.Stderr)
	}
	return lines > 0
}

// exec runs a command in a Pod and returns what it printed.
func (s *scope) exec(pod string, argv ...string) string {
	s.Helper()
	output, err := s.PodExec(s.ctx, s.namespace, pod, argv...)
	s.must(err, "run a command in Pod "+pod)
	return output
}

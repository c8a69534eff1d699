//go:build kernel

package lvmd_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// newLargeNode makes a group of two disks with metadata space for thousands of volumes. The
// test's end removes everything at once, as removing volumes one by one would take too long.
func newLargeNode(t testing.TB) *node {
	t.Helper()
	devices := []string{"/dev/vdb", "/dev/vdc"}
	n := &node{t: t, group: "carve", dir: t.TempDir(), config: "- {name: local, default: true, volumeGroup: carve}\n"}
	lvmByHand(t, append([]string{"vgcreate", "--yes", "--metadatasize", "16m", n.group}, devices...)...)
	empty := n.backup("empty")
	t.Cleanup(func() {
		lvmByHand(t, "vgchange", "--activate", "n", n.group)
		lvmByHand(t, "vgcfgrestore", "--yes", "--file", empty, n.group)
		lvmByHand(t, "vgremove", "--yes", n.group)
		lvmByHand(t, append([]string{"pvremove", "--yes"}, devices...)...)
	})
	return n
}

func (n *node) backup(name string) (file string) {
	n.t.Helper()
	file = filepath.Join(n.dir, name+".vg")
	lvmByHand(n.t, "vgcfgbackup", "--file", file, n.group)
	return file
}

// hold fills the empty group with volumes of one extent. lvmd creates the first; the others are
// copies of it in LVM's metadata, written at once, which a starting lvmd adopts by their tags.
func (n *node) hold(volumes int) {
	n.t.Helper()
	if volumes == 0 {
		return
	}
	p := n.start()
	first := p.create(create("held-0", 4<<20, ""))
	must.Succeed(n.t, p.stop())
	file := n.backup("held")
	text, err := os.ReadFile(file)
	if err != nil {
		n.t.Fatal(err)
	}
	many, err := multiply(string(text), first.GetId(), volumes)
	if err == nil {
		err = os.WriteFile(file, []byte(many), 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	lvmByHand(n.t, "vgcfgrestore", "--yes", "--file", file, n.group)
}

var (
	uuidLine    = regexp.MustCompile(`\n\t\t\tid = "[^"]*"`)
	stripeLine  = regexp.MustCompile(`"pv[01]", [0-9]+\n`)
	extentsLine = regexp.MustCompile(`\n\t\t\tpe_count = ([0-9]+)`)
)

// multiply copies the only volume in a group's metadata, side by side on the group's two
// devices.
func multiply(text, id string, volumes int) (string, error) {
	counts := extentsLine.FindAllStringSubmatch(text, -1)
	from := strings.Index(text, "\t\t"+id+" {\n")
	const closing = "\n\t\t}\n"
	if len(counts) != 2 || from < 0 {
		return "", fmt.Errorf("metadata is not as expected:\n%s", text)
	}
	extents, err := strconv.Atoi(counts[0][1])
	if err != nil {
		return "", err
	}
	to := from + strings.Index(text[from:], closing) + len(closing)
	var all strings.Builder
	for i := range volumes {
		one := text[from:to]
		if i > 0 {
			// Names of ours are in base 32, which lacks 0 and 1.
			name := id[:len(id)-10] + strings.NewReplacer("0", "a", "1", "b", "8", "c", "9", "d").Replace(fmt.Sprintf("%010d", i))
			one = strings.ReplaceAll(one, id, name)
			one = strings.ReplaceAll(one, "held-0", fmt.Sprintf("held-%d", i))
			one = uuidLine.ReplaceAllLiteralString(one, fmt.Sprintf("\n\t\t\tid = %q", fmt.Sprintf("%06d-Held-Held-Held-Held-Held-%06d", i, i)))
		}
		one = stripeLine.ReplaceAllLiteralString(one, fmt.Sprintf("\"pv%d\", %d\n", i/extents, i%extents))
		all.WriteString(one)
		all.WriteByte('\n')
	}
	return text[:from] + all.String() + text[to:], nil
}

// startMeasured starts an lvmd that serves metrics. The keys of metrics are like "lvcreate
// count" and "lvcreate seconds", or "lvcreate count fast" for a device class; "stuck" counts
// operations that wait in the kernel.
func (n *node) startMeasured() (p *process, metrics func() map[string]float64) {
	n.t.Helper()
	const address, token = "127.0.0.1:9808", "let-me-read"
	tokenFile := filepath.Join(n.dir, "token")
	must.Succeed(n.t, os.WriteFile(tokenFile, []byte(token), 0o600))
	cmd := n.command()
	cmd.Args = append(cmd.Args, "--ops-listen="+address, "--metrics-token-file="+tokenFile)
	p = n.launch(cmd)
	client := &http.Client{Transport: &http.Transport{
		// Its certificate is self-signed.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // on this machine's loopback
	}}
	n.t.Cleanup(client.CloseIdleConnections)
	line := regexp.MustCompile(`(?m)^carve_lvmd_lvm_command_seconds_(sum|count)\{class="([^"]*)",command="([a-z]+)",result="[a-z_]+"\} (.*)$`)
	stuck := regexp.MustCompile(`(?m)^carve_lvmd_stuck (.*)$`)
	return p, func() map[string]float64 {
		r, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
		if err != nil {
			n.t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := client.Do(r)
		if err != nil {
			n.t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			n.t.Fatalf("metrics: %s, error %v", answer.Status, err)
		}
		found := map[string]float64{}
		if m := stuck.FindSubmatch(text); m != nil {
			found["stuck"] = must.Get(strconv.ParseFloat(string(m[1]), 64))(n.t)
		}
		for _, m := range line.FindAllStringSubmatch(string(text), -1) {
			value := must.Get(strconv.ParseFloat(m[4], 64))(n.t)
			found[m[3]+" "+m[1]] += value
			if m[2] != "" {
				found[m[3]+" "+m[1]+" "+m[2]] += value
			}
		}
		return found
	}
}

func TestCommandsAreCountedForTheirDeviceClass(t *testing.T) {
	n := newNode(t)
	n.config += "- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi}}\n"
	p, metrics := n.startMeasured()
	thick, thin := p.create(create("pvc-thick", 20<<20, "ext4")), p.create(inClass(create("pvc-thin", 8<<20, ""), "thin"))
	p.create(create("pvc-more", 8<<20, ""))
	for _, v := range []*lvmdv1.Volume{thick, thin} {
		must.Get(p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 40 << 20}))(t)
	}
	p.delete(thick.GetId())
	want := map[string]float64{"lvcreate count local": 2, "lvcreate count thin": 1, "lvextend count local": 1, "lvextend count thin": 1, "lvremove count local": 1}
	waittest.Until(t, "the removal is counted", func() bool { return metrics()["lvremove count local"] > 0 })
	got := metrics()
	for name, count := range want {
		if got[name] != count {
			t.Errorf("%s: %v, want %v; all: %v", name, got[name], count, got)
		}
	}
}

package driver

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/waittest"
)

func stuck(t *testing.T, m *Metrics) float64 {
	t.Helper()
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "carve_node_stuck" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("there is no metric carve_node_stuck")
	return 0
}

// A grandchild in its own process group holds the killed program's output, so
// the program is gone only after two seconds.
func TestAToolThatIsNotGoneIsCounted(t *testing.T) {
	m := NewMetrics()
	started := filepath.Join(t.TempDir(), "started")
	cmd := exec.Command("sh", "-c", `setsid sh -c 'touch "$1"; sleep 10' sh "$1" & sleep 3600`, "sh", started)
	cmd.Stdout = &bytes.Buffer{}
	p, err := command.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	waittest.Succeeds(t, "the program has started", func() error { _, err := os.Stat(started); return err })
	if n := stuck(t, m); n != 0 {
		t.Errorf("%v stuck while it runs, want none", n)
	}
	if p.Kill(0) {
		t.Fatal("the program is gone at once")
	}
	if n := stuck(t, m); n != 1 {
		t.Errorf("%v stuck after it was killed, want one", n)
	}
	waittest.Until(t, "it is gone and counted no more", func() bool { return stuck(t, m) == 0 })
}

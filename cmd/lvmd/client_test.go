package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/must"
)

// serveFake returns the socket of an lvmd over an LVM in memory.
func serveFake(t *testing.T) string {
	t.Helper()
	return serveConfig(t, strings.ReplaceAll(valid, "carve-no-such-group", "carve, default: true"))
}

func serveConfig(t *testing.T, yaml string) string {
	t.Helper()
	fake := lvmfake.New()
	fake.AddGroup("carve", 4<<20, 32)
	c := must.Get(config.Parse("lvmd.yaml", []byte(yaml)))(t)
	service := must.Get(lvmd.New(t.Context(), lvmd.Options{
		Config: c, LVM: fake, StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Format: func(context.Context, string, filesystem.FormatOptions) error { return nil },
	}))(t)
	socket := filepath.Join(t.TempDir(), "lvmd.sock")
	l := must.Get(lvmd.Listen(socket))(t)
	server := service.NewServer(lvmd.Socket)
	service.Start()
	go server.Serve(l)
	t.Cleanup(func() {
		if err := lvmd.StopServers(service, server); err != nil {
			t.Error(err)
		}
	})
	return socket
}

func TestARunningLvmdIsAskedByHand(t *testing.T) {
	socket := "--socket=" + serveFake(t)
	run := func(want string, args ...string) string {
		t.Helper()
		out, err := lvmdCommand(t, append(args, socket)...)
		if err != nil || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%v: %q, error %v; want %s", args, out, err, want)
		}
		return out
	}
	run(`^CLASS [^\n]*\nlocal \(default\) +carve +linear +disk +128Mi +128Mi *\n$`, "classes")
	run(`^ID [^\n]*\n$`, "volumes")
	out := run(`\ncv[a-z2-7]{26} +scratch +local +20Mi +ext4 +ready *\n$`, "create", "scratch", "19M")
	id := regexp.MustCompile(`cv[a-z2-7]{26}`).FindString(out)
	run(` raw +ready *\n$`, "create", "bare", "1", "--block", "--class=local")
	run(` 40Mi `, "expand", id, "40Mi")
	out = run(`^\{[^\n]*\}\n\{[^\n]*\}\n$`, "volumes", "--json")
	if !strings.Contains(out, `"41943040"`) || !strings.Contains(out, id) {
		t.Errorf("JSON %s", out)
	}
	run(`^$`, "delete", id)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"no volume", []string{"delete", id}},
		{`"1.5Gi": must be a whole number of bytes`, []string{"create", "x", "1.5Gi"}},
		{"ResourceExhausted", []string{"create", "x", "1Gi"}},
	} {
		if _, err := lvmdCommand(t, append(c.args, socket)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %s", c.args, err, c.want)
		}
	}
}

func TestVolumesAreListedWithWhoTheyAreFor(t *testing.T) {
	var out strings.Builder
	must.Succeed(t, new(client).printVolumes(&out,
		&lvmdv1.Volume{Id: "a", Owner: &lvmdv1.Owner{ClaimNamespace: "shop", ClaimName: "data"}},
		&lvmdv1.Volume{Id: "b", Owner: &lvmdv1.Owner{PodNamespace: "shop", PodName: "web", PodUid: "uid"}},
	))
	if !regexp.MustCompile(`\na .* shop/data *\nb .* Pod shop/web *\n$`).MatchString(out.String()) {
		t.Errorf("got %q", out.String())
	}
}

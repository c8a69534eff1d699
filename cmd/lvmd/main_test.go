package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

// lvmdCommand returns the output and the error.
func lvmdCommand(t *testing.T, args ...string) (string, error) {
	t.Helper()
	c := command(func() error { return nil })
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func file(t *testing.T, contents string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lvmd.yaml")
	must.Succeed(t, os.WriteFile(path, []byte(contents), 0o600))
	return path
}

const valid = "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n- {name: local, volumeGroup: carve-no-such-group}\n"

func TestCheckConfigSaysNothingOfAGoodFile(t *testing.T) {
	if out, err := lvmdCommand(t, "check-config", file(t, valid)); out != "" || err != nil {
		t.Errorf("%q, error %v", out, err)
	}
}

func TestCheckConfigListsEveryProblemOnALine(t *testing.T) {
	path := file(t, strings.ReplaceAll(valid, "local,", "Local, medium: tape,"))
	out, err := lvmdCommand(t, "check-config", path)
	if err == nil || strings.Count(out, "\n") != 2 || !strings.Contains(out, path+":4:10: deviceClasses[0].name") {
		t.Errorf("%q, error %v", out, err)
	}
}

func TestCheckConfigOfAMissingFileIsAnError(t *testing.T) {
	if _, err := lvmdCommand(t, "check-config", "/nonexistent"); err == nil {
		t.Error("no error")
	}
}

func TestStartUpErrorsAreOneLineThatSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no node name", []string{}, "--node-name is empty"},
		{"no configuration", []string{"--controller=", "--config=/nonexistent"}, "/nonexistent"},
		{"a bad configuration", []string{"--controller=", "--config=" + file(t, "a: b\n")}, "unknown key"},
		{"an unknown flag", []string{"--colour"}, "unknown flag: --colour"},
		{"an argument", []string{"now"}, "now"},
		{"no lvm", []string{"--controller=", "--config=" + file(t, valid), "--state-dir=" + t.TempDir(), "--lock-dir=" + t.TempDir(), "--socket=" + filepath.Join(t.TempDir(), "socket"), "--lvm=/nonexistent/lvm"}, "/nonexistent/lvm"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := lvmdCommand(t, c.args...)
			if err == nil || out != "" || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q, error %v", out, err)
			}
		})
	}
}

func TestConfigSchemaPrintsJSON(t *testing.T) {
	out, err := lvmdCommand(t, "config-schema")
	if err != nil || !json.Valid([]byte(out)) || !strings.Contains(out, `"deviceClasses"`) {
		t.Errorf("%q, error %v", out, err)
	}
}

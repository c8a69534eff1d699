package main

import (
	"regexp"
	"strings"
	"testing"
)

func TestSnapshotsAreTakenRestoredAndDeletedByHand(t *testing.T) {
	socket := "--socket=" + serveConfig(t, "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+
		"- {name: thin, default: true, volumeGroup: carve, type: thin, thin: {pool: pool, size: 64Mi, overprovisioning: 4}}\n")
	run := func(want string, args ...string) string {
		t.Helper()
		out, err := lvmdCommand(t, append(args, socket)...)
		if err != nil || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%v: %q, error %v; want %s", args, out, err, want)
		}
		return out
	}
	id := regexp.MustCompile(`cv[a-z2-7]{26}`).FindString(run(` raw +ready`, "create", "v", "8Mi", "--block"))
	taken := run(`\n[a-z0-9]+ +before +thin +8Mi +`+id+` +true *\n$`, "snapshot", "before", id)
	snapshot := strings.Fields(strings.Split(taken, "\n")[1])[0]
	run(snapshot, "snapshots")
	run(`^\{[^\n]*"`+snapshot+`"[^\n]*\}\n$`, "snapshots", "--json")
	run(` raw +ready`, "create", "restored", "8Mi", "--block", "--from-snapshot="+snapshot)
	run(` raw +ready`, "create", "clone", "8Mi", "--block", "--from-volume="+id)
	run(`^$`, "delete-snapshot", snapshot)
	run(`^ID [^\n]*\n$`, "snapshots")
	if out, err := lvmdCommand(t, "delete-snapshot", snapshot, socket); err == nil || !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("deleting what is not there: %q, error %v", out, err)
	}
}

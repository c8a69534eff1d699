package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/carve-csi/carve/e2e/debian"
	"github.com/carve-csi/carve/e2e/vm/guest"
)

// policySource is the policy of machines with SELinux, see checkpolicy(8).
//
//go:embed selinux/policy.conf
var policySource []byte

const (
	policyFile = "selinux.policy"
	// policyVersion is the newest that Linux 5.12 reads.
	policyVersion = "33"
	selinuxFolder = "/sys/fs/selinux"
)

// compilePolicy puts the compiled policy into the folder that machines see.
func compilePolicy(ctx context.Context, build string) error {
	if err := debian.Ensure(ctx, os.Stderr, "checkpolicy"); err != nil {
		return err
	}
	source := filepath.Join(build, policyFile+".conf")
	if err := os.WriteFile(source, policySource, 0o644); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "checkpolicy", "-M", "-U", "allow", "-c", policyVersion, "-o", filepath.Join(build, policyFile), source)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the SELinux policy: %w\n%s", err, output)
	}
	return nil
}

// selinuxFiles have the programs of libselinux believe that there is SELinux.
var selinuxFiles = []guest.File{{Path: "/etc/selinux/config", Mode: 0o644, Content: []byte("SELINUX=enforcing\n")}}

// selinuxSteps load the policy, which the kernel takes in one write, and enforce it.
var selinuxSteps = []guest.Step{
	{Name: "mount selinuxfs", Argv: []string{"mount", "-t", "selinuxfs", "selinuxfs", selinuxFolder}},
	{Name: "load the policy", Argv: []string{"sh", "-c", "dd if=" + buildFolder + "/" + policyFile + " of=" + selinuxFolder + "/load bs=1M status=none || { dmesg | grep -i selinux | tail -n 20; exit 1; }"}},
	{Name: "enforce the policy", Argv: []string{"sh", "-c", "echo 1 > " + selinuxFolder + "/enforce && [ $(cat " + selinuxFolder + "/enforce) = 1 ]"}},
}

// Package debian installs the Debian packages that the harness needs on the
// machine it runs on.
package debian

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// aptMutex keeps two callers in this process from running apt at once; apt's
// own lock, with a timeout, does the same between processes.
var aptMutex sync.Mutex

// Ensure installs those of the packages that are not installed yet, and
// reports to progress (may be nil) when it has something to do. It needs root
// and a Debian-like system.
func Ensure(ctx context.Context, progress io.Writer, packages ...string) error {
	aptMutex.Lock()
	defer aptMutex.Unlock()
	missing, err := missing(ctx, packages)
	if err != nil || len(missing) == 0 {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("these packages are missing and installing them needs root: %s", strings.Join(missing, " "))
	}
	if progress != nil {
		fmt.Fprintf(progress, "installing %s\n", strings.Join(missing, " "))
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	if err := apt(ctx, "update", "-q"); err != nil {
		return err
	}
	return apt(ctx, append([]string{"install", "-q", "-y", "--no-install-recommends"}, missing...)...)
}

// missing asks dpkg which of the packages are not fully installed.
func missing(ctx context.Context, packages []string) ([]string, error) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return nil, fmt.Errorf("this machine has no dpkg: the harness runs on Debian: %w", err)
	}
	var result []string
	for _, name := range packages {
		// dpkg-query exits 1 for a package it has never heard of.
		output, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status}", name).Output()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil || string(output) != "installed" {
			result = append(result, name)
		}
	}
	return result, nil
}

func apt(ctx context.Context, args ...string) error {
	args = append([]string{"-o", "DPkg::Lock::Timeout=600", "-o", "Acquire::Retries=3"}, args...)
	command := exec.CommandContext(ctx, "apt-get", args...)
	command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, tail(output.String(), 20))
	}
	return nil
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}

package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

// runEtcd runs one etcd member from a configuration file of the upstream format
// until SIGINT or SIGTERM, and then closes it in order.
func runEtcd() int {
	flags := flag.NewFlagSet("etcd", flag.ExitOnError)
	file := flags.String("config-file", "", "configuration file of the upstream format (required)")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return 2
	}
	if *file == "" || flags.NArg() > 0 {
		flags.Usage()
		return 2
	}
	if err := serveEtcd(*file); err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 1
	}
	return 0
}

func serveEtcd(file string) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)

	config, err := embed.ConfigFromFile(file)
	if err != nil {
		return fmt.Errorf("read configuration %s: %w", file, err)
	}
	member, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer member.Close()
	select {
	case <-signals:
		return nil
	case <-member.Server.StopNotify():
		return fmt.Errorf("server stopped by itself")
	case err := <-member.Err():
		return fmt.Errorf("serve: %w", err)
	}
}

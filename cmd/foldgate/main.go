// Command foldgate is an MCP gateway: see README.md.
package main

func main() {}

#compdef cenote
# zsh completion of cenote; `compdef _cenote zpool zfs` where those are cenote.

@COMMON@

_cenote() {
    local tool=${words[1]:t} current=${words[CURRENT]} verb
    local -a choice
    integer at=2
    if [[ $tool == cenote ]]; then
        if ((CURRENT == 2)); then
            compadd -- $(_cenote_table cenote)
            return
        fi
        tool=${words[2]}
        at=3
    fi
    while [[ ${words[at]} == --embedded || ${words[at]} == -[dkT] ]]; do
        if [[ ${words[at]} == --embedded ]]; then at+=1; else at+=2; fi
    done
    verb=${words[at]}
    case $tool in
    zpool | zfs)
        if ((CURRENT <= at)); then
            choice=($(_cenote_table $tool))
        elif [[ $current == -* ]]; then
            choice=($(_cenote_table "$tool $verb"))
        else
            local -a before=(${words[at + 1, CURRENT - 1]:#-*})
            choice=($(_cenote_operands $tool $verb "${words[CURRENT - 1]}" ${#before} "$current"))
        fi
        ;;
    daemon) choice=(start stop status run) ;;
    tunable)
        if ((CURRENT <= at)); then
            choice=(list get set)
        else
            choice=(${(f)"$(cenote tunable --embedded list -H 2>/dev/null | cut -f 1)"})
        fi
        ;;
    completions) choice=(bash zsh fish) ;;
    esac
    if ((${#choice})); then
        local -a open=(${(M)choice:#*=})
        compadd -S '' -- $open
        compadd -- ${choice:#*=}
    else
        _files
    fi
}

_cenote "$@"
